// Table rows and names that the text and the pages of a report share.

import type { CompareRow, PlanReport, ReplayReport, ReplayRun } from '../../eplb/index.js'
import { bytes, table } from '../report.js'
import { crossingText, worstLayer } from './describe.js'
import { four, milliseconds, whole } from './output.js'

const textWidth = (text: string): number => Math.max(...text.split('\n').map(line => line.length))

/** A table in `width` columns: where it is wider, its columns go into several tables that all begin with the first. */
export function fittingTable(head: readonly string[], rows: readonly (readonly string[])[], width: number): string {
  const pick = (columns: readonly number[]) => {
    const of = (cells: readonly string[]) => [0, ...columns].map(c => cells[c] ?? '')
    return table(of(head), rows.map(of))
  }
  const parts: number[][] = [[]]
  for (let column = 1; column < head.length; column++) {
    const part = parts.at(-1)!
    if (part.length > 0 && textWidth(pick([...part, column])) > width) parts.push([column])
    else part.push(column)
  }
  return parts.map(pick).join('\n')
}

/** The flags that put the plan into effect. */
export function launchFlags(report: PlanReport, out: string): string {
  const { gpus, physical, logical } = report.sizes
  return `--ep-size ${gpus} --ep-num-redundant-experts ${physical - logical} --init-expert-location ${out}`
}

export function compareCells(row: CompareRow): string[] {
  if (row.after === null) return [row.algorithm, 'refused', '', '', '', '', '', '', '']
  const { moves, movesRelabelled, links } = row
  const size = (movesRelabelled ?? moves)?.bytes ?? null
  return [
    row.algorithm,
    four(row.after.balancedness),
    four(worstLayer(row.after).balancedness),
    four(row.after.peakOverBound),
    moves === null ? '–' : whole(moves.moves),
    movesRelabelled === null ? '–' : whole(movesRelabelled.moves),
    size === null ? '–' : bytes(size),
    links === null ? '–' : crossingText(links.crossing),
    row.milliseconds === null ? '–' : milliseconds(row.milliseconds),
  ]
}

export const COMPARE_HEAD = [
  'algorithm',
  'balancedness',
  'worst layer',
  'peak/bound',
  'moves',
  'relabelled',
  'bytes',
  'cross-node',
  'time',
]

/** "switchyard", or "switchyard <0.8" where thresholds are in play. */
export function runName(run: ReplayRun): string {
  if (run.algorithm === 'none') return 'trivial placement kept'
  if (run.once) return `first plan kept (${run.algorithm})`
  return run.threshold >= 1 ? run.algorithm : `${run.algorithm} below ${run.threshold}`
}

export const REPLAY_HEAD = [
  'policy',
  'mean balancedness',
  'over trivial',
  'over first plan',
  'lowest step',
  'rebalances',
  'moves',
  'bytes',
  'planning',
]

export function replayCells(run: ReplayRun): string[] {
  if (run.refused !== null) return [runName(run), 'refused', '', '', '', '', '', '', '']
  const signed = (gain: number) => `${gain >= 0 ? '+' : ''}${four(gain)}`
  const planning = run.rebalances.reduce((sum, r) => sum + r.milliseconds, 0)
  return [
    runName(run),
    four(run.meanBalancedness),
    signed(run.gain),
    run.gainOverOnce === null ? '–' : signed(run.gainOverOnce),
    four(Math.min(...run.balancedness)),
    whole(run.rebalances.length),
    whole(run.moves),
    run.bytes === null ? '–' : bytes(run.bytes),
    run.rebalances.length === 0 ? '–' : `${(planning / run.rebalances.length).toFixed(1)} ms`,
  ]
}

/** The run a table of rebalances is shown of: ours where it ran, else the one that gained most. */
export function featured(report: ReplayReport): ReplayRun | undefined {
  const ran = report.runs.filter(run => run.refused === null && run.algorithm !== 'none' && !run.once)
  return ran.find(run => run.algorithm === 'switchyard') ?? [...ran].sort((a, b) => b.gain - a.gain)[0]
}
