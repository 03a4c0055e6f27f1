// A trace as data: what every rank did, and what its programs' operations are. Plain; export and summary are functions of it.
import type { RankEvents, StepEvent } from './read.js'
import type { RowName } from './ring.js'

/** What is known of an operation without running it. */
export interface TracedOperation {
  readonly kind: string
  /** -1 outside layers. */
  readonly layer: number
  readonly label: string
  /** Ranks it exchanges with, this one included; empty when it stays on its rank. */
  readonly group: readonly number[]
  /** Operation of the other ranks that sends what this one waits for: itself, but for the second half of a dispatch or combine. */
  readonly sentBy: number
  /** Bytes that leave for and come from other ranks, by the row counts of a step; null when they depend on more. */
  bytes(rows: Readonly<Record<RowName, number>>): { readonly sent: number; readonly received: number } | null
}

export interface TracedProgram {
  readonly name: string
  readonly operations: readonly TracedOperation[]
}

export interface TracedRank {
  readonly rank: number
  /** "rank 1 (attn_dp 1, ep 1)" */
  readonly name: string
  readonly programs: readonly TracedProgram[]
  /** Operations were timed by a device beside the host: they lie in no phase of their rank. */
  readonly onDevice?: boolean
  readonly events: RankEvents
}

export interface Trace {
  readonly ranks: readonly TracedRank[]
  /** Names of phases by index. */
  readonly phases: readonly string[]
}

/** An operation as it ran, with what is known of it; `operation` is null for events of programs that are not known. */
export const operationOf = (rank: TracedRank, step: StepEvent, index: number): TracedOperation | null =>
  rank.programs[step.program]?.operations[index] ?? null

/** Earliest time of all ranks, or 0 when nothing was recorded. */
export function startOf(trace: Trace): number {
  let first = Number.POSITIVE_INFINITY
  for (const { events } of trace.ranks) for (const { start } of events.steps) first = Math.min(first, start)
  return first === Number.POSITIVE_INFINITY ? 0 : first
}
