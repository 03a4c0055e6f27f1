// One plan and what it brings: the report of `eplb plan`, with the placement beside it.
import { getAlgorithm } from '../algorithms/registry.js'
import { DEFAULT_LAMBDA } from '../algorithms/switchyard/switchyard.js'
import { linkLoad } from '../links.js'
import { trivialPlacement } from '../placement.js'
import type { BalancingInput, Placement } from '../types.js'
import { moveReport, qualityReport, sizesOf, withoutRedundant } from './common.js'
import type { PlanOptions, PlanReport } from './types.js'

const MOST_SHOWN = 8

/** Plans with one algorithm. @throws EplbError when it cannot serve the sizes. */
export function planReport(
  input: BalancingInput,
  options: PlanOptions,
): { readonly report: PlanReport; readonly placement: Placement } {
  const { counts, cluster, current } = input
  const algorithm = getAlgorithm(options.algorithm)
  const start = options.clock()
  const { progress } = options
  const result = algorithm.plan(progress ? { ...input, progress } : input)
  const milliseconds = options.clock() - start
  const { placement } = result
  const before = current ?? trivialPlacement(counts.layers, counts.experts, cluster)
  const report: PlanReport = {
    algorithm: result.algorithm,
    asked: options.algorithm,
    lambda: input.lambda ?? DEFAULT_LAMBDA,
    sizes: sizesOf(counts, cluster),
    before: qualityReport(before, counts),
    beforeIs: current ? 'current' : 'trivial',
    withoutRedundant: withoutRedundant(input),
    after: qualityReport(placement, counts),
    moves: current ? moveReport(current, placement, options.expertBytes) : null,
    links: linkLoad(placement, counts),
    replicated: mostReplicated(placement),
    milliseconds,
  }
  return { report, placement }
}

function mostReplicated({ layers, logical, replicaCounts }: Placement): PlanReport['replicated'] {
  return Array.from({ length: layers }, (_, l) =>
    Array.from(replicaCounts.subarray(l * logical, (l + 1) * logical), (replicas, expert) => ({ expert, replicas }))
      .filter(r => r.replicas > 1)
      .sort((a, b) => b.replicas - a.replicas || a.expert - b.expert)
      .slice(0, MOST_SHOWN),
  )
}
