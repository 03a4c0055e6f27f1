// Words between the members of an expert buffer. Every operation has a sequence number, the same on all members; a member
// that has done its half posts it: it writes an announcement of the operation, then the number. Whoever needs that half
// waits for the number and compares the announcement with its own. A word has one writer; nothing is locked or counted
// together. A member is ahead of another by at most one posted operation a result, far fewer than there are announcements.
import { i32View, type MemorySpan } from '../../../device/memory.js'
import type { Clock } from '../../../runtime/clock.js'
import { RankError } from '../../../runtime/errors.js'
import type { Step, Wait } from '../../../runtime/wait.js'
import type { CollectiveTag } from '../../communicator.js'
import { ANNOUNCEMENT_WORDS, ANNOUNCEMENTS } from '../../expert-buffer-config.js'

export const OPERATIONS = [
  'notify',
  'renotify',
  'send',
  'sendCombine',
  'sendLowLatency',
  'sendCombineLowLatency',
  'release',
] as const
export type EpOperation = (typeof OPERATIONS)[number]

/** What is compared, in the order of the announcement's words. */
const FIELDS = [
  'sequence',
  'step',
  'operation',
  'layer',
  'program operation',
  'result',
  'hidden',
  'top-k',
  'worst case or dispatch used again',
  'active members',
] as const
/** Word after the compared ones: differs between members. */
const TOKENS = FIELDS.length

const POSTED = 0
const GENERATION = 1
/** Announcements begin on the second cache line. */
const FIRST = 16
export const COUNTS_OFFSET = 64 + 4 * ANNOUNCEMENTS * ANNOUNCEMENT_WORDS

export interface Announcement {
  readonly operation: EpOperation
  readonly parity: number
  readonly tokens: number
  readonly worstCase: number
}

/** Until a bell that members ring has another value than `heard`. */
class BellWait implements Wait {
  readonly words: Int32Array
  readonly index: number
  readonly heard: number
  readonly peer: number
  readonly #what: string
  constructor(words: Int32Array, index: number, heard: number, peer: number, what: string) {
    this.words = words
    this.index = index
    this.heard = heard
    this.peer = peer
    this.#what = what
  }
  ready(): boolean {
    return Atomics.load(this.words, this.index) !== this.heard
  }
  describe(): string {
    return describeWait(this.#what, this.peer)
  }
}

const describeWait = (what: string, peer: number): string => `${what}, waiting for rank ${peer}`

/** Until a word that a member writes, the number of its last posted operation, has come as far as `target`. */
class WordWait implements Wait {
  readonly words: Int32Array
  readonly index: number
  readonly target: number
  readonly peer: number
  readonly #what: string
  constructor(words: Int32Array, index: number, target: number, peer: number, what: string) {
    this.words = words
    this.index = index
    this.target = target
    this.peer = peer
    this.#what = what
  }
  ready(): boolean {
    return ((Atomics.load(this.words, this.index) - this.target) | 0) >= 0
  }
  describe(): string {
    return describeWait(this.#what, this.peer)
  }
}

export interface SignalOptions {
  readonly spans: readonly MemorySpan[]
  readonly ranks: readonly number[]
  readonly member: number
  readonly group: string
  readonly hidden: number
  readonly topK: number
  readonly waited: Float64Array
  readonly clock: Clock | undefined
}

export class Signals {
  readonly #o: SignalOptions
  readonly #words: readonly Int32Array[]
  #active: boolean[]
  #activeHash = 0
  #generation = 0
  #sequence = 0
  step = 0

  constructor(options: SignalOptions) {
    this.#o = options
    this.#words = options.spans.map(i32View)
    this.#active = options.ranks.map(() => true)
  }

  isActive(member: number): boolean {
    return this.#active[member]!
  }

  rankOf(member: number): number {
    return this.#o.ranks[member]!
  }

  get active(): readonly boolean[] {
    return this.#active
  }

  setActive(active: readonly boolean[], generation: number): void {
    this.#active = [...active]
    this.#activeHash = active.reduce((hash, on) => (Math.imul(hash, 31) + (on ? 1 : 2)) | 0, 7)
    this.#generation = generation
    this.#sequence = 0
    const own = this.#words[this.#o.member]!
    Atomics.store(own, POSTED, 0)
    Atomics.store(own, GENERATION, generation)
    Atomics.notify(own, POSTED)
  }

  /** Takes the next sequence number and writes what this member is about to do. `post` makes it visible. */
  announce(tag: CollectiveTag, a: Announcement): number {
    this.#sequence = (this.#sequence + 1) | 0
    const w = this.#words[this.#o.member]!
    const at = this.#at(this.#sequence)
    w[at] = this.#sequence
    w[at + 1] = this.step
    w[at + 2] = OPERATIONS.indexOf(a.operation)
    w[at + 3] = tag.layer
    w[at + 4] = tag.operation
    w[at + 5] = a.parity
    w[at + 6] = this.#o.hidden
    w[at + 7] = this.#o.topK
    w[at + 8] = a.worstCase
    w[at + 9] = this.#activeHash
    w[at + TOKENS] = a.tokens
    return this.#sequence
  }

  post(sequence: number): void {
    const own = this.#words[this.#o.member]!
    Atomics.store(own, POSTED, sequence)
    if (this.#words.length > 1) Atomics.notify(own, POSTED)
  }

  /** Waits until `member` has posted the operation, and compares. @throws RankError SY_RANK_DISAGREES */
  *await(member: number, sequence: number, tag: CollectiveTag): Step<void> {
    if (member === this.#o.member) return
    const words = this.#words[member]!
    // Before recovery has reached the member, its number belongs to an older generation.
    if (this.#generation > 0) yield* this.until(words, GENERATION, this.#generation, member, tag)
    yield* this.until(words, POSTED, sequence, member, tag)
    // A hook called this late: everybody has gone on since, and the announcement may be overwritten.
    if (((this.#sequence - sequence) | 0) >= ANNOUNCEMENTS / 2) return
    const own = this.#words[this.#o.member]!
    const at = this.#at(sequence)
    for (let f = 0; f < FIELDS.length; f++)
      if (own[at + f] !== words[at + f]) throw this.#disagreement(tag, member, FIELDS[f]!, own[at + f]!, words[at + f]!)
  }

  /** `await` for every living member. */
  *awaitAll(sequence: number, tag: CollectiveTag): Step<void> {
    for (let m = 0; m < this.#words.length; m++) if (this.#active[m]) yield* this.await(m, sequence, tag)
  }

  /** Waits until a word that `member` writes has reached `target`. */
  *until(words: Int32Array, index: number, target: number, member: number, tag: CollectiveTag): Step<void> {
    yield* this.#measured(new WordWait(words, index, target, this.#o.ranks[member]!, tag.label), member)
  }

  /** Waits until a bell has another value than `heard`. @param member who is expected to ring it first */
  *untilRung(words: Int32Array, index: number, heard: number, member: number, tag: CollectiveTag): Step<void> {
    yield* this.#measured(new BellWait(words, index, heard, this.#o.ranks[member]!, tag.label), member)
  }

  *#measured(wait: Wait, member: number): Step<void> {
    if (wait.ready()) return
    const { clock, waited } = this.#o
    const from = clock ? clock.now() : 0
    while (!wait.ready()) yield wait
    if (clock) waited[member] = waited[member]! + (clock.now() - from) * 1000
  }

  /** Tokens that `member` brought to an operation that has been awaited. */
  tokensOf(member: number, sequence: number): number {
    return this.#words[member]![this.#at(sequence) + TOKENS]!
  }

  /** @throws RankError SY_RANK_DISAGREES when a member brought other than the expected tokens to an awaited operation */
  compareTokens(tag: CollectiveTag, sequence: number, expected: readonly number[] | undefined): void {
    if (!expected) return
    for (let m = 0; m < this.#words.length; m++) {
      if (!this.#active[m]) continue
      const found = this.tokensOf(m, sequence)
      if (found !== expected[m]) throw this.#disagreement(tag, m, 'rows', expected[m]!, found)
    }
  }

  #at(sequence: number): number {
    return FIRST + (sequence & (ANNOUNCEMENTS - 1)) * ANNOUNCEMENT_WORDS
  }

  #disagreement(tag: CollectiveTag, member: number, field: string, expected: number, found: number): RankError {
    const { ranks, group } = this.#o
    const name = (v: number) => (field === 'operation' ? (OPERATIONS[v] ?? v) : v)
    const rank = ranks[member]!
    return new RankError('SY_RANK_DISAGREES', {
      collective: `${tag.label} of group ${group}`,
      where: ` (step ${this.step}${tag.layer < 0 ? '' : `, layer ${tag.layer}`}, operation ${tag.operation})`,
      step: this.step,
      field,
      values: `${name(expected)} as rank ${ranks[this.#o.member]} has it, ${name(found)} on rank ${rank}`,
      rank,
      layer: tag.layer,
      operation: tag.operation,
    })
  }
}
