// From a ring to events: what one rank did, in order, in milliseconds of the recording clock. Steps that the ring has
// partly written over are left out, and counted.
import { RECORD, RECORD_FIELDS, ROW_NAMES, type RowName, recordsWritten, type TraceRing } from './ring.js'

export interface Span {
  readonly start: number
  readonly end: number
}

export interface WaitEvent extends Span {
  /** Operation of the program it waits in, -1 outside. */
  readonly operation: number
  readonly peer: number
}

export interface OperationEvent extends Span {
  readonly operation: number
  readonly rows: number
  /** Bytes to and from other ranks as the operation told them, -1 where it did not. */
  readonly sent: number
  readonly received: number
}

export interface PhaseEvent extends Span {
  /** Index into PHASES of the control block. */
  readonly phase: number
}

export interface StepEvent extends Span {
  readonly step: number
  readonly program: number
  /** null when the step found nothing to do. */
  readonly rows: Readonly<Record<RowName, number>> | null
  readonly phases: readonly PhaseEvent[]
  readonly operations: readonly OperationEvent[]
  readonly waits: readonly WaitEvent[]
}

export interface RankEvents {
  readonly steps: readonly StepEvent[]
  /** Records that were written over before they were read. */
  readonly lost: number
}

/** @param from records to skip: `recordsWritten` before the recording of interest began */
export function readTrace(ring: TraceRing, from = 0): RankEvents {
  const written = recordsWritten(ring)
  const wanted = written - from
  const lost = Math.max(0, wanted - ring.records)
  const steps: (StepEvent & { readonly operations: OperationEvent[] })[] = []
  let open = emptyStep()
  // What was lost may belong to the first step that is whole at its end only.
  let complete = lost === 0
  for (let n = from + lost; n < written; n++) {
    const at = (n % ring.records) * RECORD_FIELDS
    const field = (i: number): number => ring.fields[at + i]!
    const span = { start: field(1), end: field(2) }
    switch (field(0)) {
      case RECORD.phase:
        open.phases.push({ ...span, phase: field(4) })
        break
      case RECORD.operation:
        // A device tells its times when its step is over, in one of the steps after it.
        ;(late(steps, field(3)) ?? open.operations).push({
          ...span,
          operation: field(5),
          rows: field(6),
          sent: field(7),
          received: field(8),
        })
        break
      case RECORD.wait:
        open.waits.push({ ...span, operation: field(4), peer: field(5) })
        break
      case RECORD.rows:
        open.rows = Object.fromEntries(ROW_NAMES.map((name, i) => [name, field(2 + i)])) as Record<RowName, number>
        break
      default:
        // A step without phases began before `from`.
        if (complete && open.phases.length > 0) steps.push({ ...span, step: field(3), program: field(4), ...open })
        complete = true
        open = emptyStep()
    }
  }
  return { steps, lost }
}

/** Operations of a step that has been written down before. */
const late = (steps: readonly { readonly step: number; readonly operations: OperationEvent[] }[], step: number) =>
  steps.findLast(known => known.step === step)?.operations

const emptyStep = () => ({
  rows: null as Record<RowName, number> | null,
  phases: [] as PhaseEvent[],
  operations: [] as OperationEvent[],
  waits: [] as WaitEvent[],
})
