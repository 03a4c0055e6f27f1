// The node's control block: one shared Int32Array that the main thread and every rank see.
// Each word has exactly one writer. No locks, no shared counters: a barrier is an epoch word per rank, and who waits
// reads the words of the others. The main thread's watchdog reads every rank's status words.
import { RankError } from './errors.js'

const HEADER_WORDS = 32
const RANK_WORDS = 64 // four cache lines: mailbox | status | epochs (16 groups) | spare

/** Words of the header; written by the main thread only. */
const HEADER = { abort: 0, generation: 1, ranks: 2 } as const

/** Words of a rank. `doorbell` is written by the main thread, all others by the rank itself. */
const RANK = {
  doorbell: 0,
  step: 16,
  layer: 17,
  operation: 18,
  phase: 19,
  waitingFor: 20,
  beat: 21,
  program: 22,
  epoch: 32,
} as const

/** Collective groups a rank can be in at once; each has its own epoch word. */
export const MAX_GROUPS = 16

/** Where a rank is in its loop. */
export const PHASES = ['starting', 'idle', 'forming', 'voting', 'forward', 'sampling', 'committing', 'stopped'] as const
export type Phase = (typeof PHASES)[number]

export interface RankStatus {
  readonly rank: number
  readonly phase: Phase
  readonly step: number
  /** -1 outside layers. */
  readonly layer: number
  /** Which of the rank's programs it runs: an index into its launch's variants. */
  readonly program: number
  /** Index into that program, -1 outside it. */
  readonly operation: number
  /** Rank that is awaited, or -1. */
  readonly waitingFor: number
  /** Grows whenever the rank moves. */
  readonly beat: number
}

/** A view of the control block; ranks and main thread make their own over the same buffer. */
export class ControlBlock {
  readonly buffer: SharedArrayBuffer
  readonly words: Int32Array
  readonly ranks: number

  private constructor(buffer: SharedArrayBuffer) {
    this.buffer = buffer
    this.words = new Int32Array(buffer)
    this.ranks = this.words[HEADER.ranks]!
  }

  static create(ranks: number): ControlBlock {
    const buffer = new SharedArrayBuffer((HEADER_WORDS + ranks * RANK_WORDS) * 4)
    new Int32Array(buffer)[HEADER.ranks] = ranks
    const block = new ControlBlock(buffer)
    // A rank that starts is nowhere yet.
    for (let r = 0; r < ranks; r++) block.statusWriter(r)
    return block
  }

  static attach(buffer: SharedArrayBuffer): ControlBlock {
    return new ControlBlock(buffer)
  }

  #word(rank: number, word: number): number {
    return HEADER_WORDS + rank * RANK_WORDS + word
  }

  /** Main thread: makes every wait of every rank end with an error. */
  abort(): void {
    Atomics.store(this.words, HEADER.abort, 1)
    for (let r = 0; r < this.ranks; r++) this.ring(r)
  }

  get aborted(): boolean {
    return Atomics.load(this.words, HEADER.abort) !== 0
  }

  throwIfAborted(rank: number): void {
    if (this.aborted) throw new RankError('SY_RANK_ABORTED', { rank, reason: 'the abort word is set' })
  }

  /** Main thread: something lies in the rank's mailbox. */
  ring(rank: number): void {
    const index = this.#word(rank, RANK.doorbell)
    Atomics.store(this.words, index, (this.words[index]! + 1) | 0)
    Atomics.notify(this.words, index)
  }

  doorbellIndex(rank: number): number {
    return this.#word(rank, RANK.doorbell)
  }

  epochIndex(rank: number, group: number): number {
    return this.#word(rank, RANK.epoch + group)
  }

  /** The rank's own pen on its status words. `observer` hears of steps, phases and programs as they are written. */
  statusWriter(rank: number, observer: StatusObserver | null = null): StatusWriter {
    return new StatusWriter(this.words, this.#word(rank, 0), observer)
  }

  status(rank: number): RankStatus {
    const read = (word: number) => Atomics.load(this.words, this.#word(rank, word))
    return {
      rank,
      phase: PHASES[read(RANK.phase)] ?? 'starting',
      step: read(RANK.step),
      layer: read(RANK.layer),
      program: read(RANK.program),
      operation: read(RANK.operation),
      waitingFor: read(RANK.waitingFor) - 1,
      beat: read(RANK.beat),
    }
  }
}

/** Hears where a rank is in its loop: a trace. `phase` is an index into PHASES. */
export interface StatusObserver {
  step(step: number): void
  phase(phase: number): void
  program(program: number): void
}

/** Plain stores: the watchdog only needs to see them eventually, and a step makes hundreds. */
export class StatusWriter {
  readonly #words: Int32Array
  readonly #base: number
  readonly #observer: StatusObserver | null
  constructor(words: Int32Array, base: number, observer: StatusObserver | null) {
    this.#words = words
    this.#base = base
    this.#observer = observer
    words[base + RANK.layer] = -1
    words[base + RANK.operation] = -1
  }

  phase(phase: Phase): void {
    const index = PHASES.indexOf(phase)
    this.#words[this.#base + RANK.phase] = index
    this.#observer?.phase(index)
    this.#words[this.#base + RANK.operation] = -1
    this.#words[this.#base + RANK.layer] = -1
    this.#beat()
  }

  step(step: number): void {
    this.#words[this.#base + RANK.step] = step
    this.#observer?.step(step)
  }

  program(program: number): void {
    this.#words[this.#base + RANK.program] = program
    this.#observer?.program(program)
  }

  operation(layer: number, operation: number): void {
    this.#words[this.#base + RANK.layer] = layer
    this.#words[this.#base + RANK.operation] = operation
    this.#beat()
  }

  waitingFor(peer: number): void {
    this.#words[this.#base + RANK.waitingFor] = peer + 1
  }

  #beat(): void {
    const index = this.#base + RANK.beat
    this.#words[index] = (this.#words[index]! + 1) | 0
  }
}
