// The rank's pen: writes what it does into its ring as it does it. A record is written when its event has ended, so events
// inside others come first. Allocates nothing; while recording is off each call is one test.
// Whether to record is looked at when a step begins: a step is recorded whole or not at all.
import type { MemorySpan } from '../device/memory.js'
import type { Clock } from '../runtime/clock.js'
import type { StatusObserver } from '../runtime/control.js'
import type { Step } from '../runtime/wait.js'
import { HEAD, openTraceRing, RECORD, RECORD_FIELDS, ROW_NAMES, type RowName, type TraceRing } from './ring.js'

/** What the executor of a program tells. */
export interface OperationTrace {
  begin(operation: number): void
  /** @param rows rows that the operation ran on; RECEIVED_ROWS: those of the last `received` */
  end(rows: number): void
}

/** Stands for the number of rows that only a dispatch knows. */
export const RECEIVED_ROWS = -1

/** What an operation tells whose traffic depends on where tokens go: bytes to and from other ranks. */
export interface TrafficObserver {
  /** Whether anybody listens: telling may cost. */
  readonly active: boolean
  sent(bytes: number): void
  /** @param rows rows that lie here now, the own ones included; null when later operations do not run on them */
  received(rows: number | null, bytes: number): void
}

export class TraceRecorder implements StatusObserver, OperationTrace, TrafficObserver {
  readonly #ring: TraceRing
  readonly #clock: Clock
  #active = false
  #written: number
  #step = 0
  #stepStart = 0
  #program = 0
  #phase = -1
  #phaseStart = 0
  #operation = -1
  #operationStart = 0
  #sent = -1
  #received = -1
  #receivedRows = 0
  #peer = -1
  #waitStart = 0

  /** @param clock the same for all ranks: times are compared between them */
  constructor(span: MemorySpan, clock: Clock) {
    this.#ring = openTraceRing(span)
    this.#clock = clock
    this.#written = this.#ring.head[HEAD.written]!
  }

  get active(): boolean {
    return this.#active
  }

  step(step: number): void {
    if (this.#active) {
      const now = this.#clock.now()
      this.#endPhase(now)
      this.#push(RECORD.step, this.#stepStart, now, this.#step, this.#program)
    }
    const active = Atomics.load(this.#ring.head, HEAD.on) === 1
    if (active !== this.#active) Atomics.store(this.#ring.head, HEAD.recording, active ? 1 : 0)
    this.#active = active
    if (!this.#active) return
    this.#step = step
    this.#stepStart = this.#clock.now()
    this.#phase = -1
    this.#operation = -1
  }

  phase(phase: number): void {
    if (!this.#active) return
    const now = this.#clock.now()
    this.#endPhase(now)
    this.#phase = phase
    this.#phaseStart = now
  }

  program(program: number): void {
    this.#program = program
  }

  /** The step's row counts, once the plan is known. */
  rows(rows: Readonly<Record<RowName, number>>): void {
    if (!this.#active) return
    const at = this.#next(RECORD.rows)
    const { fields } = this.#ring
    fields[at + 1] = this.#step
    for (let i = 0; i < ROW_NAMES.length; i++) fields[at + 2 + i] = rows[ROW_NAMES[i]!]
    this.#publish()
  }

  begin(operation: number): void {
    if (!this.#active) return
    this.#operation = operation
    this.#sent = -1
    this.#received = -1
    this.#operationStart = this.#clock.now()
  }

  /** Now, on the clock of the trace. */
  now(): number {
    return this.#clock.now()
  }

  /** An operation that a device timed itself, told when its step's results are there: later steps may have begun. */
  deviceOperation(step: number, program: number, operation: number, rows: number, start: number, end: number): void {
    const { fields } = this.#ring
    const at = this.#push(RECORD.operation, start, end, step, program)
    fields[at + 5] = operation
    fields[at + 6] = rows
    fields[at + 7] = -1
    fields[at + 8] = -1
  }

  sent(bytes: number): void {
    this.#sent = bytes
  }

  received(rows: number | null, bytes: number): void {
    this.#received = bytes
    if (rows !== null) this.#receivedRows = rows
  }

  end(rows: number): void {
    if (!this.#active) return
    const { fields } = this.#ring
    const at = this.#push(RECORD.operation, this.#operationStart, this.#clock.now(), this.#step, this.#program)
    fields[at + 5] = this.#operation
    fields[at + 6] = rows === RECEIVED_ROWS ? this.#receivedRows : rows
    fields[at + 7] = this.#sent
    fields[at + 8] = this.#received
    this.#operation = -1
  }

  /** @param peer rank that is awaited; -1 when it is none, which is not recorded: phase `idle` says it */
  waitBegins(peer: number): void {
    if (!this.#active) return
    this.#peer = peer
    if (peer >= 0) this.#waitStart = this.#clock.now()
  }

  waitEnds(): void {
    if (!this.#active || this.#peer < 0) return
    const at = this.#push(RECORD.wait, this.#waitStart, this.#clock.now(), this.#step, this.#operation)
    this.#ring.fields[at + 5] = this.#peer
  }

  #endPhase(now: number): void {
    if (this.#phase >= 0) this.#push(RECORD.phase, this.#phaseStart, now, this.#step, this.#phase)
  }

  /** @returns index of the record's first field */
  #push(kind: number, start: number, end: number, step: number, last: number): number {
    const at = this.#next(kind)
    const { fields } = this.#ring
    fields[at + 1] = start
    fields[at + 2] = end
    fields[at + 3] = step
    fields[at + 4] = last
    this.#publish()
    return at
  }

  #next(kind: number): number {
    const at = ((this.#written >>> 0) % this.#ring.records) * RECORD_FIELDS
    this.#ring.fields[at] = kind
    return at
  }

  #publish(): void {
    this.#written = (this.#written + 1) | 0
    this.#ring.head[HEAD.written] = this.#written
  }
}

/** The same step; every wait it yields is told to the recorder. Whatever waits is seen, in whatever code. */
export function* traceWaits<T>(step: Step<T>, trace: TraceRecorder): Step<T> {
  for (;;) {
    const next = step.next()
    if (next.done) return next.value
    trace.waitBegins(next.value.peer)
    yield next.value
    trace.waitEnds()
  }
}
