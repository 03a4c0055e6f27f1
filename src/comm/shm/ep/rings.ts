// Transit rings: how rows pass from member to member in little memory. A lane is one (source, destination, channel) with its
// own ring in the destination's memory; the source writes its tail, the destination its head.
//
// A rank sends and receives in one loop: on every lane it sends what the ring takes, from every lane it takes what has come,
// and it sleeps only when neither side can move. Whoever moves a tail or a head rings the bell of the rank that it concerns.
// Nobody can wait for ever: a rank that lacks an item has emptied the lane that it will come by, so its source has room for
// it and needs nothing else. That rank is the one that is named as awaited. One operation uses the rings at a time; the next
// one finishes it first.
import type { Step } from '../../../runtime/wait.js'
import type { CollectiveTag } from '../../communicator.js'
import type { RingConfig } from '../../expert-buffer-config.js'
import type { WireFormat } from '../../wire/format.js'
import type { Rows } from '../../wire/kernels.js'
import { RingMemory, type RingRows } from './ring-memory.js'
import type { Signals } from './signals.js'
import type { EpViews } from './views.js'

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
  readonly rows: RingRows
  readonly sent: Int32Array
  readonly taken: Int32Array
  finished: boolean
}

export class Rings {
  readonly config: RingConfig
  readonly #views: EpViews
  readonly #signals: Signals
  readonly #member: number
  readonly #memory: RingMemory
  /** Items sent to, and taken from, each lane before the job that runs. */
  readonly #sentBefore: Float64Array
  readonly #takenBefore: Float64Array
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
    this.#memory = new RingMemory(views, member, config, rowBytes)
    this.#sentBefore = new Float64Array(views.size * config.channels)
    this.#takenBefore = new Float64Array(views.size * config.channels)
    this.#origin = new Int32Array(views.size)
    this.#arrived = new Int32Array(views.size)
  }

  /** Forgets all positions, for recovery; every member does. */
  reset(): void {
    this.#pending = null
    this.#sentBefore.fill(0)
    this.#takenBefore.fill(0)
    this.#memory.reset()
  }

  /** Finishes what another operation left in the rings; needed before the next may begin. */
  *settle(): Step<void> {
    if (this.#pending) yield* this.finish(this.#pending)
  }

  /** Begins a job: sends what the rings take at once. Never waits. */
  begin(job: RingJob): RingRun {
    const { length } = job.outgoing
    const run: RingRun = {
      job,
      rows: this.#memory.rowsOf(job.format),
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
    const { own, bellIndex } = this.#memory
    for (;;) {
      const heard = Atomics.load(own, bellIndex)
      const sent = this.#send(run)
      const received = this.#receive(run)
      if (sent.left === 0 && received.missing < 0) break
      if (sent.moved || received.moved) continue
      this.stalls += sent.left
      const awaited = received.missing >= 0 ? received.missing : sent.full
      yield* this.#signals.untilRung(own, bellIndex, heard, awaited, run.job.tag)
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
        const head = this.#memory.headOf(m, c)
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
          this.#memory.ring(m)
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
    const ring = run.rows.to[lane]!
    const position = this.#sentBefore[lane]! + sent[lane]!
    const slot = position % ringTokens
    const first = Math.min(n, ringTokens - slot)
    job.write(lane, sent[lane]!, first, ring, slot)
    if (first < n) job.write(lane, sent[lane]! + first, n - first, ring, 0)
    sent[lane] = sent[lane]! + n
    this.#memory.setTail(m, c, (position + n) | 0)
  }

  /** Takes from every channel what has come. */
  #receive(run: RingRun): { moved: boolean; missing: number } {
    const { size } = this.#views
    const { channels, ringTokens } = this.config
    const { job, taken } = run
    const [origin, arrived] = [this.#origin, this.#arrived]
    let moved = false
    let missing = -1
    for (let c = 0; c < channels; c++) {
      for (let m = 0; m < size; m++) {
        const lane = m * channels + c
        const before = this.#takenBefore[lane]!
        origin[m] = before % ringTokens
        // The lane's tail has gone on when its source is at the next operation already.
        const tail = this.#memory.tailOf(m, c)
        arrived[m] = Math.min(job.incoming[lane]!, (tail - before) | 0)
      }
      const lacks = job.read(c, run.rows.from[c]!, origin, arrived, taken)
      if (lacks >= 0) missing = lacks
      for (let m = 0; m < size; m++) {
        const lane = m * channels + c
        if (!this.#memory.setHead(m, c, (this.#takenBefore[lane]! + taken[lane]!) | 0)) continue
        this.#memory.ring(m)
        moved = true
      }
    }
    return { moved, missing }
  }
}
