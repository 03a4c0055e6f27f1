// A trace in the JSON that chrome://tracing and Perfetto read (Trace Event Format: complete events, flows, metadata).
// pid = rank; tid = lane: steps and their phases, operations, waits. Times are microseconds from the first event.
// Flows run from where something was sent to where it was taken in. Written piece by piece: traces can be long.
import { arrivalsOf } from './arrivals.js'
import type { Span, StepEvent } from './read.js'
import { operationOf, startOf, type Trace, type TracedRank } from './trace.js'

/** Lanes of a rank. */
export const LANE = { steps: 0, operations: 1, waits: 2 } as const

interface Metadata {
  readonly ph: 'M'
  readonly name: string
  readonly pid: number
  readonly tid?: number
  readonly args: Readonly<Record<string, unknown>>
}

interface Complete {
  readonly ph: 'X'
  readonly name: string
  readonly cat: 'step' | 'phase' | 'operation' | 'wait'
  readonly pid: number
  readonly tid: number
  readonly ts: number
  readonly dur: number
  readonly args: Readonly<Record<string, unknown>>
}

interface Flow {
  readonly ph: 's' | 'f'
  /** At an end: bind to the slice around it, not to the next one. */
  readonly bp?: 'e'
  readonly id: number
  readonly name: string
  readonly cat: 'exchange'
  readonly pid: number
  readonly tid: number
  readonly ts: number
}

export type ChromeEvent = Metadata | Complete | Flow

export function* chromeEvents(trace: Trace): Generator<ChromeEvent> {
  const origin = startOf(trace)
  const us = (time: number): number => Math.round((time - origin) * 1e6) / 1e3
  for (const rank of trace.ranks) {
    yield* metadata(rank)
    for (const step of rank.events.steps) yield* stepEvents(trace, rank, step, us)
  }
  let id = 0
  for (const { from, to, sentAt, seenAt, voting, label } of arrivalsOf(trace)) {
    const tid = voting ? LANE.steps : LANE.operations
    const common = { id: ++id, name: label, cat: 'exchange' as const, tid }
    yield { ph: 's', ...common, pid: from, ts: us(sentAt) }
    yield { ph: 'f', bp: 'e', ...common, pid: to, ts: us(seenAt) }
  }
}

function* metadata(rank: TracedRank): Generator<Metadata> {
  const pid = rank.rank
  yield { ph: 'M', name: 'process_name', pid, args: { name: rank.name } }
  yield { ph: 'M', name: 'process_sort_index', pid, args: { sort_index: pid } }
  for (const [name, tid] of Object.entries(LANE)) {
    yield { ph: 'M', name: 'thread_name', pid, tid, args: { name } }
    yield { ph: 'M', name: 'thread_sort_index', pid, tid, args: { sort_index: tid } }
  }
}

function* stepEvents(
  trace: Trace,
  rank: TracedRank,
  step: StepEvent,
  us: (time: number) => number,
): Generator<Complete> {
  const pid = rank.rank
  /** Ends are rounded, not durations, so that what nests in milliseconds nests in microseconds. */
  const time = ({ start, end }: Span) => ({ ts: us(start), dur: Math.round((us(end) - us(start)) * 1e3) / 1e3 })
  const program = rank.programs[step.program]?.name
  const ran = step.rows !== null
  const what = { step: step.step, ...(ran ? { program, ...step.rows } : {}) }
  const name = ran ? `step ${step.step}: ${step.rows!.tokens} tokens` : `step ${step.step}`
  yield { ph: 'X', name, cat: 'step', pid, tid: LANE.steps, ...time(step), args: what }
  for (const phase of step.phases) {
    const name = trace.phases[phase.phase] ?? 'unknown'
    yield { ph: 'X', name, cat: 'phase', pid, tid: LANE.steps, ...time(phase), args: { step: step.step } }
  }
  const waited = waitsByOperation(step, us)
  for (const op of step.operations) {
    const known = operationOf(rank, step, op.operation)
    const told = op.sent >= 0 || op.received >= 0
    const bytes = told
      ? { sent: Math.max(0, op.sent), received: Math.max(0, op.received) }
      : step.rows && known
        ? known.bytes(step.rows)
        : null
    const args = {
      step: step.step,
      operation: op.operation,
      ...(known && known.layer >= 0 ? { layer: known.layer } : {}),
      ...(known ? { label: known.label } : {}),
      rows: op.rows,
      ...(bytes ? { bytes_sent: bytes.sent, bytes_received: bytes.received } : {}),
      ...(waited.has(op.operation) ? { waited_us: waited.get(op.operation) } : {}),
    }
    const name = known?.kind ?? `operation ${op.operation}`
    yield { ph: 'X', name, cat: 'operation', pid, tid: LANE.operations, ...time(op), args }
  }
  for (const wait of step.waits) {
    const known = wait.operation < 0 ? null : operationOf(rank, step, wait.operation)
    const args = { step: step.step, source: wait.peer, for: known ? `${known.kind}: ${known.label}` : 'vote' }
    yield { ph: 'X', name: `rank ${wait.peer}`, cat: 'wait', pid, tid: LANE.waits, ...time(wait), args }
  }
}

/** Microseconds waited for each source in each operation: { "rank 1": 12.5 }. */
function waitsByOperation(step: StepEvent, us: (time: number) => number): Map<number, Record<string, number>> {
  const waited = new Map<number, Record<string, number>>()
  for (const { operation, peer, start, end } of step.waits) {
    const sources = waited.get(operation) ?? {}
    const key = `rank ${peer}`
    sources[key] = Math.round(((sources[key] ?? 0) + us(end) - us(start)) * 1e3) / 1e3
    waited.set(operation, sources)
  }
  return waited
}

/** The file, in pieces: one JSON object, an event a line. */
export function* chromeJson(trace: Trace, about: Readonly<Record<string, unknown>>): Generator<string> {
  yield `{"displayTimeUnit":"ms","otherData":${JSON.stringify(about)},"traceEvents":[\n`
  let first = true
  for (const event of chromeEvents(trace)) {
    yield first ? JSON.stringify(event) : `,\n${JSON.stringify(event)}`
    first = false
  }
  yield '\n]}\n'
}
