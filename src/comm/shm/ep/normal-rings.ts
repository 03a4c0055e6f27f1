// The normal mode's two jobs over transit rings. Dispatch: what comes by a lane goes to consecutive rows. Combine: the origin
// adds a token's rows straight from the rings, in member order, as soon as all of them have come. A rank's rows for itself
// need no ring: they are copied, or read where they are.
import type { CollectiveTag } from '../../communicator.js'
import type { RingConfig } from '../../expert-buffer-config.js'
import type { WireFormat } from '../../wire/format.js'
import type { Rows, WireKernels } from '../../wire/kernels.js'
import type { NormalEpHandle } from './results.js'
import type { RingJob } from './rings.js'

/** Bytes of a dispatch from which received rows bypass the caches. */
const BYPASS_FROM = 1 << 20

export class DispatchJob implements RingJob {
  readonly tag: CollectiveTag
  readonly format: WireFormat
  readonly outgoing: Int32Array
  readonly incoming: Int32Array
  readonly #kernels: WireKernels
  readonly #config: RingConfig
  readonly #from: Rows
  readonly #to: Rows
  /** Tokens of each lane, ascending. */
  readonly #tokens: readonly Int32Array[]
  /** The row that each lane's first one goes to. */
  readonly #start: Int32Array
  readonly #caching: 'bypass' | 'keep'
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
    this.#tokens = tokensOfLanes(handle, config.channels)
    const { incoming } = handle.counts
    this.#start = new Int32Array(incoming.length)
    for (let i = 1; i < incoming.length; i++) this.#start[i] = this.#start[i - 1]! + incoming[i - 1]!
    const { channels } = config
    this.outgoing = Int32Array.from(this.#tokens, list => list.length).fill(
      0,
      member * channels,
      (member + 1) * channels,
    )
    this.incoming = Int32Array.from(incoming).fill(0, member * channels, (member + 1) * channels)
    // Chunk by chunk, what is received adds up to more than the caches hold.
    const bytes = handle.received * format.rowBytes
    this.#caching = bytes > BYPASS_FROM ? 'bypass' : 'keep'
  }

  /** Copies the rows that stay on this rank. */
  copyOwn(): void {
    const { channels } = this.#config
    for (let lane = this.#member * channels; lane < (this.#member + 1) * channels; lane++) {
      const fromIndex = this.#tokens[lane]!
      const [n, toRow] = [fromIndex.length, this.#start[lane]!]
      this.#kernels.transfer({ from: this.#from, to: this.#to, n, fromIndex, toRow, caching: this.#caching })
    }
  }

  write(lane: number, first: number, n: number, ring: Rows, slot: number): void {
    const fromIndex = this.#tokens[lane]!.subarray(first, first + n)
    this.#kernels.transfer({ from: this.#from, to: ring, n, fromIndex, toRow: slot, caching: 'keep' })
  }

  read(channel: number, rings: readonly Rows[], origin: Int32Array, arrived: Int32Array, taken: Int32Array): number {
    const { channels, ringTokens } = this.#config
    let missing = -1
    for (let m = 0; m < rings.length; m++) {
      const lane = m * channels + channel
      const from = rings[m]!
      while (taken[lane]! < arrived[m]!) {
        const fromRow = (origin[m]! + taken[lane]!) % ringTokens
        const n = Math.min(arrived[m]! - taken[lane]!, ringTokens - fromRow)
        const toRow = this.#start[lane]! + taken[lane]!
        this.#kernels.transfer({ from, to: this.#to, n, fromRow, toRow, caching: this.#caching })
        taken[lane] = taken[lane]! + n
      }
      if (taken[lane]! < this.incoming[lane]!) missing = m
    }
    return missing
  }
}

/** Tokens of a rank that its rows of one channel come from: [first, end). */
function tokensOfChannel(tokens: number, channels: number, channel: number): [number, number] {
  const each = Math.ceil(tokens / channels)
  return [Math.min(tokens, each * channel), Math.min(tokens, each * (channel + 1))]
}

function tokensOfLanes({ layout, tokens }: NormalEpHandle, channels: number): Int32Array[] {
  const size = layout.tokensPerMember.length
  const lists: Int32Array[] = []
  for (let m = 0; m < size; m++) {
    const list = new Int32Array(layout.tokensPerMember[m]!)
    let n = 0
    for (let c = 0; c < channels; c++) {
      const [first, end] = tokensOfChannel(tokens, channels, c)
      const begin = n
      for (let t = first; t < end; t++) if (layout.tokenInMember[t * size + m]) list[n++] = t
      lists.push(list.subarray(begin, n))
    }
  }
  return lists
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
  readonly format: WireFormat
  readonly outgoing: Int32Array
  readonly incoming: Int32Array
  readonly #work: CombineWork
  readonly #config: RingConfig
  readonly #size: number
  /** The own member when its rows are read where they are: a wire format other than f32 must round them as all others. */
  readonly #own: number
  /** First received row of each lane: what is sent back. */
  readonly #start: Int32Array
  /** [members, channels]: row, on the member, of the first own token that a channel has there. */
  readonly #firstRow: Int32Array
  /** [channels]: next own token to be added. */
  readonly #next: Int32Array
  /** [channels][members]: where a channel's rows are read. */
  readonly #sources: (readonly Rows[])[] = []
  /** [tokens, members]: scratch for the slots of the tokens that are being added. */
  readonly #slots: Int32Array

  constructor(work: CombineWork, config: RingConfig) {
    const { handle, member } = work
    const { table, tokens, layout, counts } = handle
    const { channels } = config
    const size = layout.tokensPerMember.length
    this.tag = work.tag
    this.format = work.format
    this.#work = work
    this.#config = config
    this.#size = size
    this.#own = work.format.dtype === 'f32' ? member : -1
    this.outgoing = Int32Array.from(counts.incoming)
    this.#start = new Int32Array(size * channels)
    for (let i = 1; i < this.#start.length; i++) this.#start[i] = this.#start[i - 1]! + this.outgoing[i - 1]!
    this.incoming = new Int32Array(size * channels)
    this.#firstRow = new Int32Array(size * channels)
    this.#next = new Int32Array(channels)
    this.#slots = new Int32Array(table.length)
    for (let c = 0; c < channels; c++) {
      const [first, end] = tokensOfChannel(tokens, channels, c)
      this.#next[c] = first
      for (let m = 0; m < size; m++) {
        let n = 0
        for (let t = end - 1; t >= first; t--) {
          const row = table[t * size + m]!
          if (row < 0) continue
          n++
          this.#firstRow[m * channels + c] = row
        }
        this.incoming[m * channels + c] = n
      }
    }
    if (this.#own < 0) return
    this.outgoing.fill(0, member * channels, (member + 1) * channels)
    this.incoming.fill(0, member * channels, (member + 1) * channels)
  }

  write(lane: number, first: number, n: number, ring: Rows, slot: number): void {
    const { kernels, from } = this.#work
    kernels.transfer({ from, to: ring, n, fromRow: this.#start[lane]! + first, toRow: slot, caching: 'keep' })
  }

  read(channel: number, rings: readonly Rows[], origin: Int32Array, arrived: Int32Array, taken: Int32Array): number {
    const { channels, ringTokens } = this.#config
    const { handle, kernels, out } = this.#work
    const { table } = handle
    const [size, own, slots, firstRow] = [this.#size, this.#own, this.#slots, this.#firstRow]
    const first = this.#next[channel]!
    const [, end] = tokensOfChannel(handle.tokens, channels, channel)
    let missing = -1
    let t = first
    for (; t < end; t++) {
      for (let m = 0; m < size; m++) {
        const row = table[t * size + m]!
        if (row >= 0 && m !== own && row - firstRow[m * channels + channel]! >= arrived[m]!) missing = m
      }
      if (missing >= 0) break
      for (let m = 0; m < size; m++) {
        const at = (t - first) * size + m
        const row = table[t * size + m]!
        slots[at] = row
        if (row < 0 || m === own) continue
        const item = row - firstRow[m * channels + channel]!
        slots[at] = (origin[m]! + item) % ringTokens
        taken[m * channels + channel] = item + 1
      }
    }
    this.#next[channel] = t
    kernels.sum({ from: this.#rowsOf(channel, rings), out, n: t - first, outRow: first, table: slots })
    return missing
  }

  #rowsOf(channel: number, rings: readonly Rows[]): readonly Rows[] {
    this.#sources[channel] ??= rings.map((ring, m) => (m === this.#own ? this.#work.from : ring))
    return this.#sources[channel]
  }
}
