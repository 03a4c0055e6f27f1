// The normal mode's two jobs over transit rings. Dispatch: a round of a lane is the next chunk of the tokens that go there.
// Combine: a round is the next chunk of the origin's tokens, whoever sends rows for them, so that the origin can add a token's
// rows in member order straight from the rings. A rank's rows for itself need no ring: they are copied, or read where they are.
import type { CollectiveTag } from '../../communicator.js'
import type { RingConfig } from '../../expert-buffer-config.js'
import type { WireFormat } from '../../wire/format.js'
import type { Rows, WireKernels } from '../../wire/kernels.js'
import type { NormalEpHandle } from './results.js'
import type { RingJob } from './rings.js'

/** Bytes of a dispatch from which received rows bypass the caches. */
const BYPASS_FROM = 1 << 20

const inChunk = (all: number, chunk: number, round: number): number => Math.max(0, Math.min(chunk, all - round * chunk))

export class DispatchJob implements RingJob {
  readonly tag: CollectiveTag
  readonly rounds: number
  readonly format: WireFormat
  readonly #kernels: WireKernels
  readonly #config: RingConfig
  readonly #from: Rows
  readonly #to: Rows
  /** Tokens of each (member, channel), ascending. */
  readonly #lists: readonly Int32Array[]
  /** [members, channels] rows that come, and the row that each lane's first one goes to. */
  readonly #incoming: Int32Array
  readonly #start: Int32Array
  readonly #caching: { readonly caching?: 'bypass' }
  readonly #member: number

  constructor(
    tag: CollectiveTag,
    member: number,
    handle: NormalEpHandle,
    config: RingConfig,
    kernels: WireKernels,
    from: Rows,
    to: Rows,
    format: WireFormat,
  ) {
    this.tag = tag
    this.#member = member
    this.format = format
    this.#kernels = kernels
    this.#config = config
    this.#from = from
    this.#to = to
    this.#lists = laneLists(handle, config.channels)
    this.#incoming = handle.counts.incoming
    this.#start = new Int32Array(this.#incoming.length)
    for (let i = 1; i < this.#start.length; i++) this.#start[i] = this.#start[i - 1]! + this.#incoming[i - 1]!
    const longest = Math.max(...this.#incoming, ...this.#lists.map(l => l.length))
    this.rounds = Math.ceil(longest / config.chunkTokens)
    // Chunk by chunk, what is received adds up to more than the caches hold.
    const bytes = handle.received * format.rowBytes
    this.#caching = bytes > BYPASS_FROM ? { caching: 'bypass' } : {}
  }

  #lane(member: number, channel: number): number {
    return member * this.#config.channels + channel
  }

  /** Copies the rows that stay on this rank. */
  copyOwn(): void {
    for (let c = 0; c < this.#config.channels; c++) {
      const lane = this.#lane(this.#member, c)
      const fromIndex = this.#lists[lane]!
      const common = { from: this.#from, to: this.#to, ...this.#caching }
      this.#kernels.transfer({ ...common, n: fromIndex.length, fromIndex, toRow: this.#start[lane]! })
    }
  }

  outgoing(member: number, channel: number, round: number): number {
    if (member === this.#member) return 0
    return inChunk(this.#lists[this.#lane(member, channel)]!.length, this.#config.chunkTokens, round)
  }

  write(member: number, channel: number, round: number, first: number, n: number, ring: Rows, slot: number): void {
    const at = round * this.#config.chunkTokens + first
    const fromIndex = this.#lists[this.#lane(member, channel)]!.subarray(at, at + n)
    this.#kernels.transfer({ from: this.#from, to: ring, n, fromIndex, toRow: slot, caching: 'keep' })
  }

  incoming(member: number, channel: number, round: number): number {
    if (member === this.#member) return 0
    return inChunk(this.#incoming[this.#lane(member, channel)]!, this.#config.chunkTokens, round)
  }

  read(channel: number, round: number, rings: readonly Rows[], at: Int32Array): void {
    for (let m = 0; m < rings.length; m++) {
      const n = this.incoming(m, channel, round)
      if (n === 0) continue
      const from = rings[m]!
      const toRow = this.#start[this.#lane(m, channel)]! + round * this.#config.chunkTokens
      const first = Math.min(n, this.#config.ringTokens - at[m]!)
      const common = { from, to: this.#to, ...this.#caching }
      this.#kernels.transfer({ ...common, n: first, fromRow: at[m]!, toRow })
      if (first < n) this.#kernels.transfer({ ...common, n: n - first, fromRow: 0, toRow: toRow + first })
    }
  }
}

function laneLists(handle: NormalEpHandle, channels: number): Int32Array[] {
  const { layout, tokens } = handle
  const size = layout.tokensPerMember.length
  const each = Math.max(1, Math.ceil(tokens / channels))
  const lists = Array.from(
    { length: size * channels },
    (_, lane) => new Int32Array(layout.tokensPerMember[Math.floor(lane / channels)]!),
  )
  const filled = new Int32Array(size * channels)
  for (let t = 0; t < tokens; t++)
    for (let m = 0; m < size; m++) {
      if (!layout.tokenInMember[t * size + m]) continue
      const lane = m * channels + Math.floor(t / each)
      lists[lane]![filled[lane]!] = t
      filled[lane] = filled[lane]! + 1
    }
  return lists.map((list, lane) => list.subarray(0, filled[lane]!))
}

export interface CombineWork {
  readonly tag: CollectiveTag
  readonly handle: NormalEpHandle
  readonly kernels: WireKernels
  readonly member: number
  /** Partial rows of what was received. */
  readonly from: Rows
  readonly out: Rows
  readonly format: WireFormat
}

export class CombineJob implements RingJob {
  readonly tag: CollectiveTag
  readonly rounds: number
  readonly format: WireFormat
  readonly #work: CombineWork
  readonly #config: RingConfig
  readonly #size: number
  /** The own member when its rows are read where they are: a wire format other than f32 must round them as all others. */
  readonly #own: number
  /** [members · channels][rounds + 1]: first received row of each round. */
  readonly #firstRow: readonly Int32Array[]
  /** [channels][rounds, members]: own tokens of a round that have a row on the member. */
  readonly #expected: readonly Int32Array[]

  /** @param sources source token of each received row */
  constructor(work: CombineWork, config: RingConfig, sources: Int32Array, size: number) {
    const { handle } = work
    const { channels, chunkTokens } = config
    const { tokensOfMember, incoming } = handle.counts
    this.tag = work.tag
    this.format = work.format
    this.#work = work
    this.#config = config
    this.#size = size
    this.#own = work.format.dtype === 'f32' ? work.member : -1
    const most = Math.max(...tokensOfMember)
    this.rounds = Math.ceil(Math.ceil(most / channels) / chunkTokens)
    let row = 0
    this.#firstRow = Array.from(incoming, (n, lane) => {
      const begin = Math.ceil(tokensOfMember[Math.floor(lane / channels)]! / channels) * (lane % channels)
      const firsts = new Int32Array(this.rounds + 1)
      const end = row + n
      for (let j = 0; j < this.rounds; j++) {
        firsts[j] = row
        while (row < end && sources[row]! < begin + (j + 1) * chunkTokens) row++
      }
      firsts[this.rounds] = row
      row = end
      return firsts
    })
    this.#expected = Array.from({ length: channels }, (_, c) => {
      const counts = new Int32Array(this.rounds * size)
      for (let j = 0; j < this.rounds; j++) {
        const [from, end] = this.#tokens(c, j)
        for (let i = from * size; i < end * size; i++)
          if (handle.table[i]! >= 0) counts[j * size + (i % size)] = counts[j * size + (i % size)]! + 1
      }
      return counts
    })
  }

  /** Own tokens of a channel's round. */
  #tokens(channel: number, round: number): [number, number] {
    const { tokens } = this.#work.handle
    const each = Math.ceil(tokens / this.#config.channels)
    const end = Math.min(tokens, each * (channel + 1))
    const from = Math.min(end, each * channel + round * this.#config.chunkTokens)
    return [from, Math.min(end, from + this.#config.chunkTokens)]
  }

  outgoing(member: number, channel: number, round: number): number {
    if (member === this.#own) return 0
    const firsts = this.#firstRow[member * this.#config.channels + channel]!
    return firsts[round + 1]! - firsts[round]!
  }

  write(member: number, channel: number, round: number, first: number, n: number, ring: Rows, slot: number): void {
    const fromRow = this.#firstRow[member * this.#config.channels + channel]![round]! + first
    this.#work.kernels.transfer({ from: this.#work.from, to: ring, n, fromRow, toRow: slot, caching: 'keep' })
  }

  incoming(member: number, channel: number, round: number): number {
    if (member === this.#own) return 0
    return this.#expected[channel]![round * this.#size + member]!
  }

  read(channel: number, round: number, rings: readonly Rows[], at: Int32Array): void {
    const [from, end] = this.#tokens(channel, round)
    if (end === from) return
    const { table } = this.#work.handle
    const size = this.#size
    const slots = new Int32Array((end - from) * size)
    const next = Int32Array.from(at)
    for (let i = 0; i < slots.length; i++) {
      const m = i % size
      const row = table[from * size + i]!
      slots[i] = row < 0 || m === this.#own ? row : next[m]!
      if (row >= 0) next[m] = (next[m]! + 1) % this.#config.ringTokens
    }
    const sources = rings.map((ring, m) => (m === this.#own ? this.#work.from : ring))
    this.#work.kernels.sum({ from: sources, out: this.#work.out, n: end - from, outRow: from, table: slots })
  }
}
