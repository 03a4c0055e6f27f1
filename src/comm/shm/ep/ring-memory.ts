// Where transit rings lie: for each lane a ring in the destination's memory, a tail that its source writes and a head that its
// destination writes, each on a cache line of its own; and one bell a member.
import { i32View } from '../../../device/memory.js'
import { type RingConfig, ringSources } from '../../expert-buffer-config.js'
import type { WireFormat } from '../../wire/format.js'
import { type Rows, wireRows } from '../../wire/kernels.js'
import type { EpViews } from './views.js'

/** Words between two heads or tails: a cache line. */
const PAD = 16

/** The rings that a rank writes and reads, as rows of one format. */
export interface RingRows {
  /** [members · channels]: by lane that this rank sends to. */
  readonly to: readonly Rows[]
  /** [channels][members]: by lane that comes to this rank. */
  readonly from: readonly (readonly Rows[])[]
}

export class RingMemory {
  readonly #views: EpViews
  readonly #member: number
  readonly #config: RingConfig
  readonly #rowBytes: number
  /** Tails, heads and bell that lie in each member's memory. */
  readonly #words: readonly Int32Array[]
  readonly #rows = new Map<WireFormat['dtype'], RingRows>()

  /** @param rowBytes of the widest rows that pass */
  constructor(views: EpViews, member: number, config: RingConfig, rowBytes: number) {
    this.#views = views
    this.#member = member
    this.#config = config
    this.#rowBytes = rowBytes
    this.#words = Array.from({ length: views.size }, (_, m) => i32View(views.span(m, 'credits')!))
  }

  /** Own tails and heads begin anew, for recovery. A bell only ever goes on. */
  reset(): void {
    this.#words[this.#member]!.fill(0, 0, this.bellIndex)
  }

  /** How far `member` has taken what this rank sent by a channel. */
  headOf(member: number, channel: number): number {
    return Atomics.load(this.#words[member]!, this.#headIndex(this.#member, channel))
  }

  /** How far `member` has sent to this rank by a channel. */
  tailOf(member: number, channel: number): number {
    return Atomics.load(this.#words[member]!, this.#tailIndex(this.#member, channel))
  }

  setTail(destination: number, channel: number, position: number): void {
    Atomics.store(this.#words[this.#member]!, this.#tailIndex(destination, channel), position)
  }

  /** @returns whether that moved it */
  setHead(source: number, channel: number, position: number): boolean {
    const own = this.#words[this.#member]!
    const index = this.#headIndex(source, channel)
    if (own[index] === position) return false
    Atomics.store(own, index, position)
    return true
  }

  /** Wakes a member that sleeps: something that it may wait for has moved. */
  ring(member: number): void {
    if (member === this.#member) return
    const words = this.#words[member]!
    Atomics.add(words, this.bellIndex, 1)
    Atomics.notify(words, this.bellIndex)
  }

  /** The words that the own bell lies in. */
  get own(): Int32Array {
    return this.#words[this.#member]!
  }

  /** The one word that all members write: it says nothing but that there is something to look at. */
  get bellIndex(): number {
    return 2 * this.#views.size * this.#config.channels * PAD
  }

  /** Of the words that a source writes: the tail of its lane to `destination`. */
  #tailIndex(destination: number, channel: number): number {
    return (destination * this.#config.channels + channel) * PAD
  }

  /** Of the words that a destination writes: the head of the lane from `source`. */
  #headIndex(source: number, channel: number): number {
    return ((this.#views.size + source) * this.#config.channels + channel) * PAD
  }

  rowsOf(format: WireFormat): RingRows {
    const known = this.#rows.get(format.dtype)
    if (known) return known
    const { channels, ringTokens } = this.#config
    const { size } = this.#views
    const allSources = ringSources(this.#views.config.normal!, size) === size
    const members = Array.from({ length: size }, (_, m) => wireRows({ format, span: this.#views.span(m, 'rings')! }))
    const ring = (destination: number, source: number, channel: number): Rows => {
      const none = source === destination && !allSources
      const place = source > destination && !allSources ? source - 1 : source
      const byteOffset = none ? 0 : (place * channels + channel) * ringTokens * this.#rowBytes
      return { ...members[destination]!, byteOffset, rowBytes: this.#rowBytes, capacity: none ? 0 : ringTokens }
    }
    const to = Array.from({ length: size * channels }, (_, lane) =>
      ring(Math.floor(lane / channels), this.#member, lane % channels),
    )
    const from = Array.from({ length: channels }, (_, c) =>
      Array.from({ length: size }, (_, source) => ring(this.#member, source, c)),
    )
    this.#rows.set(format.dtype, { to, from })
    return { to, from }
  }
}
