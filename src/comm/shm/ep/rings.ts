// Transit rings: how rows pass from member to member in little memory. A lane is one (source, destination, channel) with its
// own ring in the destination's memory; the source writes its tail, the destination its head.
//
// Work goes in rounds. A rank sends round j on all lanes, then receives round j - lag on all lanes; a lane's ring holds
// lag + 1 rounds. Sending round j needs only that round j - lag - 1 has been received, receiving round j only that it has
// been sent, so every wait is for something earlier in the same order: no ring sizes, counts or speeds can deadlock, and
// a rank always waits for one word of one member. One operation uses the rings at a time; the next one finishes it first.
import { i32View } from '../../../device/memory.js'
import type { Step } from '../../../runtime/wait.js'
import type { CollectiveTag } from '../../communicator.js'
import type { RingConfig } from '../../expert-buffer-config.js'
import type { WireFormat } from '../../wire/format.js'
import { type Rows, wireRows } from '../../wire/kernels.js'
import type { Signals } from './signals.js'
import type { EpViews } from './views.js'

/** Words between two heads or tails: a cache line. */
const PAD = 16

/** One dispatch or combine over the rings, in the terms of its rounds. */
export interface RingJob {
  readonly tag: CollectiveTag
  /** Rounds that any lane has. */
  readonly rounds: number
  readonly format: WireFormat
  /** Items that this rank sends to `member` in a round. */
  outgoing(member: number, channel: number, round: number): number
  /** Puts `n` items, from `first` of the round on, into consecutive slots of the ring. */
  write(member: number, channel: number, round: number, first: number, n: number, ring: Rows, slot: number): void
  /** Items that come from `member` in a round. */
  incoming(member: number, channel: number, round: number): number
  /** Takes what has come of a round: lane (m, channel) begins at slot `at[m]` and may wrap. */
  read(channel: number, round: number, rings: readonly Rows[], at: Int32Array): void
}

export class Rings {
  readonly config: RingConfig
  readonly #views: EpViews
  readonly #signals: Signals
  readonly #member: number
  readonly #rowBytes: number
  /** Tails and heads that each member writes. */
  readonly #credits: readonly Int32Array[]
  /** Items ever sent to, and taken from, each lane. */
  readonly #sent: Float64Array
  readonly #taken: Float64Array
  readonly #rows = new Map<string, readonly (readonly Rows[])[]>()
  #pending: RingRun | null = null
  /** Times a sender found a ring full. */
  stalls = 0

  constructor(views: EpViews, signals: Signals, member: number, config: RingConfig, rowBytes: number) {
    this.config = config
    this.#views = views
    this.#signals = signals
    this.#member = member
    this.#rowBytes = rowBytes
    this.#credits = Array.from({ length: views.size }, (_, m) => i32View(views.span(m, 'credits')!))
    this.#sent = new Float64Array(views.size * config.channels)
    this.#taken = new Float64Array(views.size * config.channels)
  }

  /** Forgets all positions, for recovery; every member does. */
  reset(): void {
    this.#pending = null
    this.#sent.fill(0)
    this.#taken.fill(0)
    this.#credits[this.#member]!.fill(0)
  }

  /** Finishes what another operation left in the rings; needed before the next may begin. */
  *settle(): Step<void> {
    if (this.#pending) yield* this.finish(this.#pending)
  }

  /** Begins a job: sends the rounds that the rings take at once. Never waits. */
  begin(job: RingJob): RingRun {
    const run: RingRun = { job, sentRounds: 0, finished: false }
    this.#pending = run
    const { lag } = this
    while (run.sentRounds < Math.min(job.rounds, lag + 1) && this.#fits(job, run.sentRounds)) {
      this.#eachLane((m, c) => this.#put(job, m, c, run.sentRounds))
      run.sentRounds++
    }
    return run
  }

  *finish(run: RingRun): Step<void> {
    if (run.finished) return
    const { job } = run
    const { lag } = this
    for (let j = 0; j < job.rounds + lag; j++) {
      if (j >= run.sentRounds && j < job.rounds) yield* this.#sendRound(job, j)
      if (j >= lag) yield* this.#receiveRound(job, j - lag)
    }
    run.finished = true
    this.#pending = null
  }

  /** Rounds that may be on their way beside the one being received. */
  get lag(): number {
    return Math.floor(this.config.ringTokens / this.config.chunkTokens) - 1
  }

  #eachLane(f: (member: number, channel: number) => void): void {
    for (let i = 1; i <= this.#views.size; i++) {
      const m = (this.#member + i) % this.#views.size
      for (let c = 0; c < this.config.channels; c++) f(m, c)
    }
  }

  /** Position that the destination's head must have reached before the round's items fit. */
  #needs(job: RingJob, m: number, c: number, round: number): number {
    return this.#sent[m * this.config.channels + c]! + job.outgoing(m, c, round) - this.config.ringTokens
  }

  #fits(job: RingJob, round: number): boolean {
    let fits = true
    this.#eachLane((m, c) => {
      const head = Atomics.load(this.#credits[m]!, this.#headIndex(this.#member, c))
      if (((head - this.#needs(job, m, c, round)) | 0) < 0) fits = false
    })
    return fits
  }

  *#sendRound(job: RingJob, round: number): Step<void> {
    const { size } = this.#views
    for (let i = 1; i <= size; i++) {
      const m = (this.#member + i) % size
      for (let c = 0; c < this.config.channels; c++) {
        if (job.outgoing(m, c, round) === 0) continue
        const needs = this.#needs(job, m, c, round)
        const words = this.#credits[m]!
        const index = this.#headIndex(this.#member, c)
        if (((Atomics.load(words, index) - needs) | 0) < 0) this.stalls++
        yield* this.#signals.until(words, index, needs, m, job.tag)
        this.#put(job, m, c, round)
      }
    }
  }

  #put(job: RingJob, m: number, c: number, round: number): void {
    const n = job.outgoing(m, c, round)
    if (n === 0) return
    const { ringTokens, channels } = this.config
    const lane = m * channels + c
    const ring = this.#ringsOf(job.format, m)[c]![this.#member]!
    const slot = this.#sent[lane]! % ringTokens
    const first = Math.min(n, ringTokens - slot)
    job.write(m, c, round, 0, first, ring, slot)
    if (first < n) job.write(m, c, round, first, n - first, ring, 0)
    this.#sent[lane] = this.#sent[lane]! + n
    this.#publish(this.#tailIndex(m, c), this.#sent[lane]!)
  }

  *#receiveRound(job: RingJob, round: number): Step<void> {
    const { size } = this.#views
    const { channels, ringTokens } = this.config
    const at = new Int32Array(size)
    const rings = this.#ringsOf(job.format, this.#member)
    for (let c = 0; c < channels; c++) {
      for (let m = 0; m < size; m++) {
        const lane = m * channels + c
        at[m] = this.#taken[lane]! % ringTokens
        const n = job.incoming(m, c, round)
        if (n === 0) continue
        yield* this.#signals.until(
          this.#credits[m]!,
          this.#tailIndex(this.#member, c),
          this.#taken[lane]! + n,
          m,
          job.tag,
        )
      }
      job.read(c, round, rings[c]!, at)
      for (let m = 0; m < size; m++) {
        const n = job.incoming(m, c, round)
        if (n === 0) continue
        const lane = m * channels + c
        this.#taken[lane] = this.#taken[lane]! + n
        this.#publish(this.#headIndex(m, c), this.#taken[lane]!)
      }
    }
  }

  #publish(index: number, position: number): void {
    const own = this.#credits[this.#member]!
    Atomics.store(own, index, position | 0)
    Atomics.notify(own, index)
  }

  /** Of the words that a source writes: the tail of its lane to `destination`. */
  #tailIndex(destination: number, channel: number): number {
    return (destination * this.config.channels + channel) * PAD
  }

  /** Of the words that a destination writes: the head of the lane from `source`. */
  #headIndex(source: number, channel: number): number {
    return ((this.#views.size + source) * this.config.channels + channel) * PAD
  }

  /** The rings in a member's memory, [channels][sources], as rows of the format. */
  #ringsOf(format: WireFormat, member: number): readonly (readonly Rows[])[] {
    const key = `${member} ${format.dtype}`
    const known = this.#rows.get(key)
    if (known) return known
    const { channels, ringTokens } = this.config
    const all = wireRows({ format, span: this.#views.span(member, 'rings')! })
    const lane = (source: number, channel: number): Rows => {
      const byteOffset = (source * channels + channel) * ringTokens * this.#rowBytes
      return { ...all, byteOffset, rowBytes: this.#rowBytes, capacity: ringTokens }
    }
    const rings = Array.from({ length: channels }, (_, c) =>
      Array.from({ length: this.#views.size }, (_, s) => lane(s, c)),
    )
    this.#rows.set(key, rings)
    return rings
  }
}

export interface RingRun {
  readonly job: RingJob
  sentRounds: number
  finished: boolean
}
