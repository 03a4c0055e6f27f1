// The memory of a rank's trace: a ring of fixed-size records in memory lent by the node, written by the rank, read by the
// main thread after recording has been switched off. The newest records are kept; older ones are written over.
// Each word has one writer: `on` the main thread; `written`, and `recording` (what the rank made of `on`), the rank.
import { ALIGNMENT, hostBuffer, type MemoryLender, type MemorySpan } from '../device/memory.js'

/** f64 fields of a record; a record that needs fewer leaves the rest as they are. */
export const RECORD_FIELDS = 10
const RECORD_BYTES = RECORD_FIELDS * 8
const HEAD_BYTES = ALIGNMENT

export const HEAD = { on: 0, written: 1, recording: 2 } as const

/**
 * First field: the kind. Times are milliseconds of the recording clock.
 * - step: start, end, step, program
 * - phase: start, end, step, phase (index into PHASES)
 * - operation: start, end, step, program, operation, rows, bytes sent, bytes received (-1: not told)
 * - wait: start, end, step, operation (-1 outside the program), peer
 * - rows: step, then one field for each of ROW_NAMES
 */
export const RECORD = { step: 0, phase: 1, operation: 2, wait: 3, rows: 4 } as const

/** Row counts of a step, in the order of their fields. */
export const ROW_NAMES = ['tokens', 'padded', 'gathered', 'slice', 'received', 'logitRows', 'gatheredLogits'] as const
export type RowName = (typeof ROW_NAMES)[number]

/** Views of one ring. */
export interface TraceRing {
  readonly head: Int32Array
  /** [records, RECORD_FIELDS] */
  readonly fields: Float64Array
  readonly records: number
}

export const lendTraceRing = (lender: MemoryLender, records: number): MemorySpan =>
  lender.lend(HEAD_BYTES + records * RECORD_BYTES, 'trace')

export function openTraceRing(span: MemorySpan): TraceRing {
  const records = Math.floor((span.byteLength - HEAD_BYTES) / RECORD_BYTES)
  return {
    head: new Int32Array(hostBuffer(span), span.byteOffset, HEAD_BYTES / 4),
    fields: new Float64Array(hostBuffer(span), span.byteOffset + HEAD_BYTES, records * RECORD_FIELDS),
    records,
  }
}

/** Main thread: steps that begin from now on are recorded, or no longer are. */
export const switchRecording = (ring: TraceRing, on: boolean): void => {
  Atomics.store(ring.head, HEAD.on, on ? 1 : 0)
}

/** Main thread: whether the step that runs is recorded, as the rank decided when it began. */
export const isRecording = (ring: TraceRing): boolean => Atomics.load(ring.head, HEAD.recording) === 1

/** Records written since the ring was lent, those written over included. */
export const recordsWritten = (ring: TraceRing): number => Atomics.load(ring.head, HEAD.written) >>> 0
