// A recorded load played again under policies: when each would have rebalanced, what that costs and what it gains. The report
// of `eplb replay`. At a tick a policy sees only the steps before it; the plan serves the steps after it.
import { getAlgorithm } from '../algorithms/registry.js'
import { DEFAULT_LAMBDA } from '../algorithms/switchyard/switchyard.js'
import { stepRange } from '../counts.js'
import { diffPlacements } from '../diff.js'
import { balancednessPerStep, meanBalancedness, quality } from '../loads.js'
import { trivialPlacement } from '../placement.js'
import { relabel } from '../relabel.js'
import type { AlgorithmName, BalancingInput, Cluster, Counts, Placement } from '../types.js'
import { attempt, checkOption, isHierarchical, sizesOf } from './common.js'
import type { ReplayOptions, ReplayReport, ReplayRun } from './types.js'

type Rebalance = ReplayRun['rebalances'][number]

/**
 * Replays `counts` from the trivial placement: left as it is, then with one plan at the first tick that is kept, then each
 * policy with each threshold. Every `interval` steps the mean balancedness of the last `window` steps' summed load is
 * looked at, and the policy plans anew from these steps where it is below the threshold (or always, at 1). Plans are
 * relabelled optimally before they take effect.
 *
 * Nobody who balances keeps the trivial placement, and its replicas are those of the first experts whatever their load:
 * what rebalancing is worth is the distance to the plan that is kept (`gainOverOnce`).
 * @throws EplbError SY_EPLB_OPTION for a window, interval or threshold out of range.
 */
export function replayReport(counts: Counts, cluster: Cluster, options: ReplayOptions): ReplayReport {
  const { window = 20, interval = 20, policies = ['deepseek', 'switchyard'], thresholds = [1] } = options
  checkOption('window', window, 'a whole number of at least 1', Number.isSafeInteger(window) && window >= 1)
  checkOption('interval', interval, 'a whole number of at least 1', Number.isSafeInteger(interval) && interval >= 1)
  for (const t of thresholds) checkOption('threshold', t, 'above 0 and at most 1', t > 0 && t <= 1)
  const settings = { ...options, window, interval }
  const total = policies.length * thresholds.length + 2
  options.progress?.(0, total, 'none')
  const still = balancednessPerStep(trivialPlacement(counts.layers, counts.experts, cluster), counts)
  const none = { ...emptyRun('none', 1, options), balancedness: Array.from(still), meanBalancedness: average(still) }
  options.progress?.(1, total, 'first plan')
  const once = planOnce(counts, cluster, policies, settings)
  const runs: ReplayRun[] = once === null ? [none] : [none, once]
  for (const policy of policies) {
    for (const threshold of thresholds) {
      options.progress?.(runs.length, total, policy)
      const { value, refused } = attempt(() => replay(counts, cluster, policy, { threshold, once: false }, settings))
      runs.push(value ?? { ...emptyRun(policy, threshold, options), refused: `${refused.message} ${refused.remedy}` })
    }
  }
  options.progress?.(total, total, 'done')
  const compared = runs.map(run => {
    if (run.refused !== null) return run
    const over = (baseline: ReplayRun) => run.meanBalancedness - baseline.meanBalancedness
    return { ...run, gain: over(none), gainOverOnce: once === null ? null : over(once) }
  })
  return { sizes: sizesOf(counts, cluster), window, interval, lambda: options.lambda ?? DEFAULT_LAMBDA, runs: compared }
}

/** By `switchyard` where it is among the policies, else by the first one that takes the sizes. */
function planOnce(
  counts: Counts,
  cluster: Cluster,
  policies: readonly AlgorithmName[],
  options: ReplaySettings,
): ReplayRun | null {
  const preferred = [...policies].sort((a, b) => Number(b === 'switchyard') - Number(a === 'switchyard'))
  for (const policy of preferred) {
    const { value } = attempt(() => replay(counts, cluster, policy, { threshold: 1, once: true }, options))
    if (value) return value
  }
  return null
}

type ReplaySettings = ReplayOptions & { readonly window: number; readonly interval: number }

const emptyRun = (algorithm: ReplayRun['algorithm'], threshold: number, options: ReplayOptions): ReplayRun => ({
  algorithm,
  threshold,
  once: false,
  balancedness: [],
  meanBalancedness: 0,
  gain: 0,
  gainOverOnce: null,
  rebalances: [],
  moves: 0,
  bytes: moveBytes(0, options),
  refused: null,
})

function replay(
  counts: Counts,
  cluster: Cluster,
  policy: AlgorithmName,
  { threshold, once }: { readonly threshold: number; readonly once: boolean },
  options: ReplaySettings,
): ReplayRun {
  let current = trivialPlacement(counts.layers, counts.experts, cluster)
  const balancedness: number[] = []
  const rebalances: Rebalance[] = []
  for (let step = 0; step < counts.steps; step += options.interval) {
    if (step > 0) {
      const seen = stepRange(counts, step - options.window, step)
      const before = meanBalancedness(quality(current, seen))
      const due = once ? rebalances.length === 0 : threshold >= 1 || before < threshold
      if (due) {
        const start = options.clock()
        const planned = replan(policy, seen, current, options)
        const milliseconds = options.clock() - start
        const { moves } = diffPlacements(current, planned).totals
        rebalances.push({
          step,
          before,
          planned: meanBalancedness(quality(planned, seen)),
          moves,
          bytes: moveBytes(moves, options),
          milliseconds,
        })
        current = planned
      }
    }
    balancedness.push(...balancednessPerStep(current, stepRange(counts, step, step + options.interval)))
  }
  const moves = rebalances.reduce((sum, r) => sum + r.moves, 0)
  return {
    ...emptyRun(policy, threshold, options),
    once,
    balancedness,
    meanBalancedness: average(balancedness),
    rebalances,
    moves,
    bytes: moveBytes(moves, options),
  }
}

/** A new plan, named so that it moves the least; `switchyard` names its own. */
function replan(policy: AlgorithmName, counts: Counts, current: Placement, options: ReplayOptions): Placement {
  const input: BalancingInput = {
    counts,
    cluster: current.cluster,
    current,
    ...(options.groups === undefined ? {} : { groups: options.groups }),
    ...(options.lambda === undefined ? {} : { lambda: options.lambda }),
    ...(options.linkWeight === undefined ? {} : { linkWeight: options.linkWeight }),
  }
  const { placement } = getAlgorithm(policy).plan(input)
  return policy === 'switchyard' ? placement : relabel(current, placement, { withinNodes: isHierarchical(policy) })
}

const moveBytes = (moves: number, { expertBytes }: ReplayOptions): number | null =>
  expertBytes === undefined ? null : moves * expertBytes

function average(values: ArrayLike<number>): number {
  let sum = 0
  for (let i = 0; i < values.length; i++) sum += values[i]!
  return values.length === 0 ? 1 : sum / values.length
}
