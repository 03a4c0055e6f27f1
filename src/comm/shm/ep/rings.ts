// Transit rings: how rows pass from member to member in little memory. A lane is one (source, destination, channel) with its
// own ring in the destination's memory; the source writes its tail, the destination its head.
//
// A rank sends and receives in one loop: on every lane it sends what the ring takes, from every lane it takes what has come,
// and it sleeps only when neither side can move. Whoever moves a tail or a head rings the bell of the rank that it concerns.
// Nobody can wait for ever: a rank that lacks an item has emptied the lane that it will come by, so its source has room for
// it and needs nothing else. That rank is the one that is named as awaited. One operation uses the rings at a time; the next
// one finishes it first.
import { i32View } from '../../../device/memory.js'
import type { Step } from '../../../runtime/wait.js'
import type { CollectiveTag } from '../../communicator.js'
import { type RingConfig, ringSources } from '../../expert-buffer-config.js'
import type { WireFormat } from '../../wire/format.js'
import { type Rows, wireRows } from '../../wire/kernels.js'
import type { Signals } from './signals.js'
import type { EpViews } from './views.js'

/** Words between two heads or tails: a cache line. */
const PAD = 16

/** One dispatch or combine over the rings. Lane (member, channel) has the number member · channels + channel. */
export interface RingJob {
  readonly tag: CollectiveTag
  readonly format: WireFormat
  /** [members, channels]: items that this rank sends to a lane in all, and that come from it. */
  readonly outgoing: Int32Array
  readonly incoming: Int32Array
  /** Puts items first, first + 1, … of a lane into `n` consecutive slots of its ring. */
  write(lane: number, first: number, n: number, ring: Rows, slot: number): void
  /**
   * Takes what can be taken of a channel's items.
   * @param rings of each member; item i of member m's lane lies in slot (origin[m] + i) mod slots
   * @param arrived [members] items of each lane that are there
   * @param taken [members, channels] items that were taken of all lanes; moved on for this channel's
   * @returns the member whose next item is missing, or -1 when nothing is
   */
  read(channel: number, rings: readonly Rows[], origin: Int32Array, arrived: Int32Array, taken: Int32Array): number
}

/** How far a job has come, in items of each lane. */
export interface RingRun {
  readonly job: RingJob
  /** [members, channels]: the ring that a lane of this rank ends in, and the one that a lane to it ends in. */
  readonly to: readonly Rows[]
  /** [channels][members]. */
  readonly from: readonly (readonly Rows[])[]
  readonly sent: Int32Array
  readonly taken: Int32Array
  finished: boolean
}

export class Rings {
  readonly config: RingConfig
  readonly #views: EpViews
  readonly #signals: Signals
  readonly #member: number
  readonly #rowBytes: number
  /** Tails, heads and bell in each member's memory. */
  readonly #credits: readonly Int32Array[]
  /** Items sent to, and taken from, each lane before the job that runs. */
  readonly #sentBefore: Float64Array
  readonly #takenBefore: Float64Array
  readonly #rows = new Map<WireFormat['dtype'], Pick<RingRun, 'to' | 'from'>>()
  readonly #origin: Int32Array
  readonly #arrived: Int32Array
  #pending: RingRun | null = null
  /** Lanes that were full when a rank fell asleep, in all. */
  stalls = 0

  constructor(views: EpViews, signals: Signals, member: number, config: RingConfig, rowBytes: number) {
    this.config = config
    this.#views = views
    this.#signals = signals
    this.#member = member
    this.#rowBytes = rowBytes
    this.#credits = Array.from({ length: views.size }, (_, m) => i32View(views.span(m, 'credits')!))
    this.#sentBefore = new Float64Array(views.size * config.channels)
    this.#takenBefore = new Float64Array(views.size * config.channels)
    this.#origin = new Int32Array(views.size)
    this.#arrived = new Int32Array(views.size)
  }

  /** Forgets all positions, for recovery; every member does. A bell only ever goes on. */
  reset(): void {
    this.#pending = null
    this.#sentBefore.fill(0)
    this.#takenBefore.fill(0)
    this.#credits[this.#member]!.fill(0, 0, this.#bellIndex)
  }

  /** Finishes what another operation left in the rings; needed before the next may begin. */
  *settle(): Step<void> {
    if (this.#pending) yield* this.finish(this.#pending)
  }

  /** Begins a job: sends what the rings take at once. Never waits. */
  begin(job: RingJob): RingRun {
    const { length } = job.outgoing
    const { to, from } = this.#ringsOf(job.format)
    const run: RingRun = {
      job,
      to,
      from,
      sent: new Int32Array(length),
      taken: new Int32Array(length),
      finished: false,
    }
    this.#pending = run
    this.#send(run)
    return run
  }

  /** Moves items until all have been sent and taken. */
  *finish(run: RingRun): Step<void> {
    if (run.finished) return
    const bell = this.#credits[this.#member]!
    for (;;) {
      const heard = Atomics.load(bell, this.#bellIndex)
      const sent = this.#send(run)
      const received = this.#receive(run)
      if (sent.left === 0 && received.missing < 0) break
      if (sent.moved || received.moved) continue
      this.stalls += sent.left
      const awaited = received.missing >= 0 ? received.missing : sent.full
      yield* this.#signals.untilRung(bell, this.#bellIndex, heard, awaited, run.job.tag)
    }
    for (let lane = 0; lane < run.sent.length; lane++) {
      this.#sentBefore[lane] = this.#sentBefore[lane]! + run.sent[lane]!
      this.#takenBefore[lane] = this.#takenBefore[lane]! + run.taken[lane]!
    }
    run.finished = true
    this.#pending = null
  }

  /**
   * Sends on every lane what its ring takes, at most half a ring, so that receiving has its turn.
   * @returns whether anything moved, lanes that have items left, and the last member whose ring is full
   */
  #send(run: RingRun): { moved: boolean; left: number; full: number } {
    const { size } = this.#views
    const { channels, chunkTokens, ringTokens } = this.config
    const { job, sent } = run
    const burst = Math.max(chunkTokens, ringTokens >> 1)
    let moved = false
    let left = 0
    let full = -1
    for (let i = 1; i <= size; i++) {
      const m = (this.#member + i) % size
      for (let c = 0; c < channels; c++) {
        const lane = m * channels + c
        const all = job.outgoing[lane]!
        if (sent[lane] === all) continue
        const head = Atomics.load(this.#credits[m]!, this.#headIndex(this.#member, c))
        const before = sent[lane]!
        let room = ringTokens - ((this.#sentBefore[lane]! + before - head) | 0)
        for (;;) {
          const n = Math.min(chunkTokens, all - sent[lane]!)
          if (n === 0 || n > room || sent[lane]! - before + n > burst) break
          this.#put(run, m, c, n)
          room -= n
        }
        if (sent[lane]! > before) {
          moved = true
          this.#ring(m)
        }
        if (sent[lane]! < all) {
          left++
          full = m
        }
      }
    }
    return { moved, left, full }
  }

  /** Puts the next `n` items of a lane into its ring, which has room for them. */
  #put(run: RingRun, m: number, c: number, n: number): void {
    const { ringTokens, channels } = this.config
    const { job, sent } = run
    const lane = m * channels + c
    const ring = run.to[lane]!
    const position = this.#sentBefore[lane]! + sent[lane]!
    const slot = position % ringTokens
    const first = Math.min(n, ringTokens - slot)
    job.write(lane, sent[lane]!, first, ring, slot)
    if (first < n) job.write(lane, sent[lane]! + first, n - first, ring, 0)
    sent[lane] = sent[lane]! + n
    Atomics.store(this.#credits[this.#member]!, this.#tailIndex(m, c), (position + n) | 0)
  }

  /** Takes from every channel what has come. */
  #receive(run: RingRun): { moved: boolean; missing: number } {
    const { size } = this.#views
    const { channels, ringTokens } = this.config
    const { job, taken } = run
    const own = this.#credits[this.#member]!
    const [origin, arrived] = [this.#origin, this.#arrived]
    let moved = false
    let missing = -1
    for (let c = 0; c < channels; c++) {
      for (let m = 0; m < size; m++) {
        const lane = m * channels + c
        const before = this.#takenBefore[lane]!
        origin[m] = before % ringTokens
        // The lane's tail has gone on when its source is at the next operation already.
        const tail = Atomics.load(this.#credits[m]!, this.#tailIndex(this.#member, c))
        arrived[m] = Math.min(job.incoming[lane]!, (tail - before) | 0)
      }
      const lacks = job.read(c, run.from[c]!, origin, arrived, taken)
      if (lacks >= 0) missing = lacks
      for (let m = 0; m < size; m++) {
        const lane = m * channels + c
        const index = this.#headIndex(m, c)
        const head = (this.#takenBefore[lane]! + taken[lane]!) | 0
        if (own[index] === head) continue
        Atomics.store(own, index, head)
        this.#ring(m)
        moved = true
      }
    }
    return { moved, missing }
  }

  /** Wakes a member that sleeps: something that it may wait for has moved. */
  #ring(member: number): void {
    if (member === this.#member) return
    const words = this.#credits[member]!
    Atomics.add(words, this.#bellIndex, 1)
    Atomics.notify(words, this.#bellIndex)
  }

  /** Of the words that a source writes: the tail of its lane to `destination`. */
  #tailIndex(destination: number, channel: number): number {
    return (destination * this.config.channels + channel) * PAD
  }

  /** Of the words that a destination writes: the head of the lane from `source`. */
  #headIndex(source: number, channel: number): number {
    return ((this.#views.size + source) * this.config.channels + channel) * PAD
  }

  /** The one word that all members write: it says nothing but that there is something to look at. */
  get #bellIndex(): number {
    return 2 * this.#views.size * this.config.channels * PAD
  }

  /** The rings in all members' memory that this rank writes or reads, as rows of the format. */
  #ringsOf(format: WireFormat): Pick<RingRun, 'to' | 'from'> {
    const known = this.#rows.get(format.dtype)
    if (known) return known
    const { channels, ringTokens } = this.config
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
    const rings = { to, from }
    this.#rows.set(format.dtype, rings)
    return rings
  }
}
