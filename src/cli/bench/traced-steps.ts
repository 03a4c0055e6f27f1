// Where a step's time goes, from a trace of several ranks: figures are those of the busiest rank, since ranks wait for each other
// inside kernels and a mean over them would count waiting as work. Each rank has streams of its own, as on GPUs. Pure.
import { operationOf, type StepEvent, summarize, type Trace, type TracedRank } from '../../trace/index.js'

export interface TracedSteps {
  /** The rank the figures are of. */
  readonly rank: number
  /** The host's own microseconds of a step: forming, voting, queueing, committing; without waiting. */
  readonly hostUs: number
  /** Share of the GPU's time between steps. */
  readonly gpuIdleShare: number | null
  /** Microseconds of a step by kind of operation, largest first. */
  readonly kinds: readonly { readonly kind: string; readonly calls: number; readonly us: number }[]
}

/** The host's work; in phases, by the names of the summary. */
const HOST = new Set(['forming', 'voting', 'queueing', 'committing'])
/** Entries of the summary that are no work at all. */
const NO_WORK = new Set(['sampling', 'idle', 'between', 'waiting'])
/** Kernels of these wait for other ranks, so their time says nothing of how much a rank has to do. */
const EXCHANGE = new Set(['dispatch_send', 'dispatch_receive', 'combine_send', 'combine_receive'])

/**
 * @param rows of all ranks together: only steps with as many count
 * @param skipped such steps at the beginning that do not count
 * @returns null when no such step was recorded
 */
export function tracedSteps(trace: Trace, rows: number, skipped: number): TracedSteps | null {
  const rowsOf = new Map<number, number>()
  for (const { events } of trace.ranks)
    for (const { step, rows: own } of events.steps) rowsOf.set(step, (rowsOf.get(step) ?? 0) + (own?.tokens ?? 0))
  const counted = trace.ranks.map((rank): TracedRank => {
    // A rank without rows takes part too, but what it does is waiting.
    const running = rank.events.steps.filter(
      s => rowsOf.get(s.step) === rows && s.rows !== null && s.rows.tokens > 0 && s.operations.length > 0,
    )
    const steps = running.slice(skipped)
    return { ...rank, events: { ...rank.events, steps } }
  })
  let [busiest, most]: [TracedRank | null, number] = [null, 0]
  for (const rank of counted) {
    const { steps } = rank.events
    const work = steps.reduce((sum, step) => sum + ownWork(rank, step), 0) / Math.max(1, steps.length)
    if (steps.length > 0 && (!busiest || work > most)) [busiest, most] = [rank, work]
  }
  if (!busiest) return null
  const { kinds, deviceIdleShare } = summarize({ ...trace, ranks: [busiest] })
  const perStep = (sum: number) => sum / busiest.events.steps.length
  return {
    rank: busiest.rank,
    hostUs: perStep(kinds.reduce((sum, k) => sum + (HOST.has(k.kind) ? k.us : 0), 0)),
    gpuIdleShare: deviceIdleShare,
    kinds: kinds
      .filter(({ kind }) => !HOST.has(kind) && !NO_WORK.has(kind))
      .map(({ kind, calls, us }) => ({ kind, calls: perStep(calls), us: perStep(us) })),
  }
}

/** Milliseconds of a step's operations that wait for no other rank. */
const ownWork = (rank: TracedRank, step: StepEvent): number =>
  step.operations.reduce((sum, { operation, start, end }) => {
    const kind = operationOf(rank, step, operation)?.kind ?? ''
    return EXCHANGE.has(kind) ? sum : sum + end - start
  }, 0)
