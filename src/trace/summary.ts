// A trace in numbers: where the ranks' time went, by kind of operation, and who waited for whom. Plain data.
import { operationOf, type Trace } from './trace.js'

export interface KindShare {
  /** Kind of operation; or `waiting`, `voting`, `forming`, `queueing` (of work on a device), `committing`, `idle`, and `between` for the rest of a step. */
  readonly kind: string
  readonly calls: number
  /** Microseconds over all ranks, waits not included. */
  readonly us: number
  /** Of all ranks' time in their steps. */
  readonly share: number
}

export interface WaitSum {
  readonly rank: number
  readonly source: number
  /** "all_gather: moe_in: rows of all DP ranks", or "vote". */
  readonly for: string
  readonly times: number
  readonly us: number
}

export interface TraceSummary {
  readonly ranks: number
  /** Steps that found something to do, of the rank with most. */
  readonly steps: number
  /** Microseconds from the first step's begin to the last one's end. */
  readonly us: number
  /** Rows of all attention-DP ranks, over the steps. */
  readonly rows: number
  readonly lost: number
  /** Of ranks whose operations a device timed: the share of its time, first operation to last, that lies between steps. */
  readonly deviceIdleShare: number | null
  readonly kinds: readonly KindShare[]
  /** Largest first: the same place in all layers is one entry. */
  readonly waits: readonly WaitSum[]
}

export function summarize(trace: Trace): TraceSummary {
  const kinds = new Map<string, { calls: number; ms: number }>()
  const waits = new Map<string, { rank: number; source: number; for: string; times: number; ms: number }>()
  const add = (kind: string, calls: number, ms: number): void => {
    const entry = kinds.get(kind) ?? { calls: 0, ms: 0 }
    kinds.set(kind, { calls: entry.calls + calls, ms: entry.ms + ms })
  }
  let [first, last, total] = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY, 0]
  for (const rank of trace.ranks) {
    for (const step of rank.events.steps) {
      const length = step.end - step.start
      total += length
      first = Math.min(first, step.start)
      last = Math.max(last, step.end)
      let explained = 0
      const waited = (operation: number): number =>
        step.waits.reduce((sum, w) => (w.operation === operation ? sum + w.end - w.start : sum), 0)
      for (const op of step.operations) {
        const own = op.end - op.start
        add(operationOf(rank, step, op.operation)?.kind ?? 'unknown', 1, own - waited(op.operation))
        if (!rank.onDevice) explained += own
      }
      for (const phase of step.phases) {
        const name = trace.phases[phase.phase] ?? 'unknown'
        if (name === 'forward' && !rank.onDevice) continue
        const own = phase.end - phase.start
        add(name === 'forward' ? 'queueing' : name, 1, own - (name === 'voting' ? waited(-1) : 0))
        explained += own
      }
      for (const { operation, peer, start, end } of step.waits) {
        const known = operation < 0 ? null : operationOf(rank, step, operation)
        const place = known ? `${known.kind}: ${known.label}` : 'vote'
        const key = `${rank.rank} ${peer} ${place}`
        const entry = waits.get(key) ?? { rank: rank.rank, source: peer, for: place, times: 0, ms: 0 }
        waits.set(key, { ...entry, times: entry.times + 1, ms: entry.ms + end - start })
        add('waiting', 1, end - start)
      }
      add('between', 0, length - explained)
    }
  }
  const us = (ms: number): number => Math.round(ms * 1e6) / 1e3
  const steps = trace.ranks.map(r => r.events.steps.filter(s => s.rows !== null))
  const rows = (steps[0] ?? []).reduce((sum, s) => sum + s.rows!.gathered, 0)
  return {
    ranks: trace.ranks.length,
    steps: Math.max(0, ...steps.map(s => s.length)),
    us: total === 0 ? 0 : us(last - first),
    rows,
    lost: trace.ranks.reduce((sum, r) => sum + r.events.lost, 0),
    deviceIdleShare: idleShareOf(trace),
    kinds: [...kinds]
      .map(([kind, { calls, ms }]) => ({ kind, calls, us: us(ms), share: total === 0 ? 0 : ms / total }))
      .sort((a, b) => b.us - a.us),
    waits: [...waits.values()].map(({ ms, ...wait }) => ({ ...wait, us: us(ms) })).sort((a, b) => b.us - a.us),
  }
}

function idleShareOf(trace: Trace): number | null {
  let [busy, whole] = [0, 0]
  for (const { onDevice, events } of trace.ranks) {
    const ran = onDevice ? events.steps.flatMap(step => step.operations) : []
    if (ran.length === 0) continue
    for (const { start, end } of ran) busy += end - start
    whole +=
      ran.reduce((last, op) => Math.max(last, op.end), 0) -
      ran.reduce((first, op) => Math.min(first, op.start), Infinity)
  }
  return whole === 0 ? null : Math.max(0, 1 - busy / whole)
}
