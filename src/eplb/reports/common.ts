// Parts that several reports share: sizes, quality and moves as plain numbers, and the algorithms to compare.

import { makeCluster, nodesIn, physicalOf } from '../cluster.js'
import { diffPlacements } from '../diff.js'
import { EplbError } from '../errors.js'
import { gpuLoads, meanBalancedness, quality } from '../loads.js'
import { trivialPlacement } from '../placement.js'
import type { AlgorithmName, BalancingInput, Cluster, Counts, Placement } from '../types.js'
import type { MoveReport, QualityReport, Sizes } from './types.js'

/** Every algorithm, in the order of tables. */
export const ALL: readonly AlgorithmName[] = [
  'deepseek',
  'deepseek_hierarchical',
  'deepseek_vec',
  'deepseek_vec_hierarchical',
  'elasticity_aware',
  'elasticity_aware_hierarchical',
  'switchyard',
]

export function sizesOf(counts: Counts, cluster: Cluster): Sizes {
  return {
    steps: counts.steps,
    layers: counts.layers,
    logical: counts.experts,
    physical: physicalOf(cluster),
    gpus: cluster.gpus,
    nodes: nodesIn(cluster),
    dead: [...cluster.dead],
    slotsPerGpu: [...cluster.slotsPerGpu],
  }
}

/**
 * Mean balancedness of the trivial placement of the logical experts alone, one slot each: what runs before redundant slots
 * are bought. Null where it says nothing: see `PlanReport.withoutRedundant`.
 */
export function withoutRedundant({ counts, cluster, current }: BalancingInput): number | null {
  const { gpus, nodeOfGpu, dead } = cluster
  const physical = counts.experts
  if (current || dead.length > 0 || physicalOf(cluster) === physical || physical % gpus !== 0) return null
  const plain = makeCluster({ gpus, nodeOfGpu, physical })
  return meanBalancedness(quality(trivialPlacement(counts.layers, counts.experts, plain), counts))
}

export function qualityReport(placement: Placement, counts: Counts): QualityReport {
  const q = quality(placement, counts)
  const { gpus } = placement.cluster
  const loads = gpuLoads(placement, counts)
  let ratio = 0
  let loaded = 0
  for (const [l, bound] of q.lowerBound.entries()) {
    if (bound <= 0) continue
    ratio += q.peak[l]! / bound
    loaded++
  }
  return {
    balancedness: meanBalancedness(q),
    balancednessPerLayer: Array.from(q.balancedness),
    peakPerLayer: Array.from(q.peak),
    meanPerLayer: Array.from(q.mean),
    lowerBoundPerLayer: Array.from(q.lowerBound),
    peakOverBound: loaded === 0 ? 1 : ratio / loaded,
    gpuLoad: Array.from({ length: counts.layers }, (_, l) => Array.from(loads.subarray(l * gpus, (l + 1) * gpus))),
  }
}

export function moveReport(from: Placement, to: Placement, expertBytes: number | undefined): MoveReport {
  const { totals, receivedPerGpu, sentPerGpu } = diffPlacements(from, to)
  return { ...totals, bytes: expertBytes === undefined ? null : totals.moves * expertBytes, receivedPerGpu, sentPerGpu }
}

/** The result of `plan`, or the EplbError with which it refused the sizes. */
export function attempt<T>(
  plan: () => T,
): { readonly value: T; readonly refused: null } | { readonly value: null; readonly refused: EplbError } {
  try {
    return { value: plan(), refused: null }
  } catch (error) {
    if (error instanceof EplbError) return { value: null, refused: error }
    throw error
  }
}

/** Plans of these keep replicas of an expert in one node; so does their relabelling. */
export const isHierarchical = (name: AlgorithmName): boolean => name.endsWith('_hierarchical')

export function checkOption(option: string, value: number, expected: string, ok: boolean): void {
  if (!ok) throw new EplbError('SY_EPLB_OPTION', { option, value, expected })
}
