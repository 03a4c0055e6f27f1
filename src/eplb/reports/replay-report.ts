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
 * Replays `counts` from the trivial placement: without rebalancing, then each policy with each threshold. Every `interval`
 * steps the mean balancedness of the last `window` steps' summed load is looked at, and the policy plans anew from
 * these steps where it is below the threshold (or always, at 1). Plans are relabelled optimally before they take effect.
 * @throws EplbError SY_EPLB_OPTION for a window, interval or threshold out of range.
 */
export function replayReport(counts: Counts, cluster: Cluster, options: ReplayOptions): ReplayReport {
  const { window = 20, interval = 20, policies = ['deepseek', 'switchyard'], thresholds = [1] } = options
  checkOption('window', window, 'a whole number of at least 1', Number.isSafeInteger(window) && window >= 1)
  checkOption('interval', interval, 'a whole number of at least 1', Number.isSafeInteger(interval) && interval >= 1)
  for (const t of thresholds) checkOption('threshold', t, 'above 0 and at most 1', t > 0 && t <= 1)
  const settings = { ...options, window, interval }
  const total = policies.length * thresholds.length + 1
  options.progress?.(0, total, 'none')
  const still = balancednessPerStep(trivialPlacement(counts.layers, counts.experts, cluster), counts)
  const baseline = average(still)
  const runs: ReplayRun[] = [
    {
      algorithm: 'none',
      threshold: 1,
      balancedness: Array.from(still),
      meanBalancedness: baseline,
      gain: 0,
      rebalances: [],
      moves: 0,
      bytes: moveBytes(0, options),
      refused: null,
    },
  ]
  for (const policy of policies) {
    for (const threshold of thresholds) {
      options.progress?.(runs.length, total, policy)
      const { value, refused } = attempt(() => replay(counts, cluster, policy, threshold, settings, baseline))
      runs.push(
        value ?? {
          algorithm: policy,
          threshold,
          balancedness: [],
          meanBalancedness: 0,
          gain: 0,
          rebalances: [],
          moves: 0,
          bytes: moveBytes(0, options),
          refused: `${refused.message} ${refused.remedy}`,
        },
      )
    }
  }
  options.progress?.(total, total, 'done')
  return { sizes: sizesOf(counts, cluster), window, interval, lambda: options.lambda ?? DEFAULT_LAMBDA, runs }
}

function replay(
  counts: Counts,
  cluster: Cluster,
  policy: AlgorithmName,
  threshold: number,
  options: ReplayOptions & { readonly window: number; readonly interval: number },
  baseline: number,
): ReplayRun {
  let current = trivialPlacement(counts.layers, counts.experts, cluster)
  const balancedness: number[] = []
  const rebalances: Rebalance[] = []
  for (let step = 0; step < counts.steps; step += options.interval) {
    if (step > 0) {
      const seen = stepRange(counts, step - options.window, step)
      const before = meanBalancedness(quality(current, seen))
      if (threshold >= 1 || before < threshold) {
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
  const mean = average(balancedness)
  return {
    algorithm: policy,
    threshold,
    balancedness,
    meanBalancedness: mean,
    gain: mean - baseline,
    rebalances,
    moves,
    bytes: moveBytes(moves, options),
    refused: null,
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
