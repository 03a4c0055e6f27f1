// All algorithms on the same input, side by side: the report of `eplb compare`.
import { getAlgorithm } from '../algorithms/registry.js'
import { DEFAULT_LAMBDA } from '../algorithms/switchyard/switchyard.js'
import { linkLoad } from '../links.js'
import { checkSameSlots, trivialPlacement } from '../placement.js'
import { relabel } from '../relabel.js'
import type { AlgorithmName, BalancingInput, Placement } from '../types.js'
import { ALL, attempt, isHierarchical, moveReport, qualityReport, sizesOf, withoutRedundant } from './common.js'
import type { CompareOptions, CompareReport, CompareRow } from './types.js'

/**
 * Plans with every algorithm. One that refuses the sizes gets a row that says why. Moves are counted from the current
 * placement, else from the trivial one; `switchyard` weighs moves only when there is a current placement.
 */
export function compareReport(input: BalancingInput, options: CompareOptions): CompareReport {
  const { counts, cluster } = input
  const names = options.algorithms ?? ALL
  const before = input.current ?? trivialPlacement(counts.layers, counts.experts, cluster)
  if (input.current) checkSameSlots(input.current, trivialPlacement(counts.layers, counts.experts, cluster))
  const rows = names.map((name, i) => {
    options.progress?.(i, names.length, name)
    return row(name, input, before, options)
  })
  options.progress?.(names.length, names.length, 'done')
  let best: CompareRow | undefined
  for (const r of rows) if (r.after && (!best?.after || r.after.balancedness > best.after.balancedness)) best = r
  return {
    sizes: sizesOf(counts, cluster),
    before: qualityReport(before, counts),
    beforeIs: input.current ? 'current' : 'trivial',
    withoutRedundant: withoutRedundant(input),
    lambda: input.lambda ?? DEFAULT_LAMBDA,
    rows,
    best: best?.algorithm ?? 'switchyard',
  }
}

function row(name: AlgorithmName, input: BalancingInput, before: Placement, options: CompareOptions): CompareRow {
  const start = options.clock()
  const { value, refused } = attempt(() => getAlgorithm(name).plan(input))
  const milliseconds = options.clock() - start
  if (!value) {
    const { code, message, remedy } = refused
    return {
      algorithm: name,
      refused: { code, message, remedy },
      after: null,
      moves: null,
      movesRelabelled: null,
      links: null,
      milliseconds: null,
    }
  }
  const { placement } = value
  const renamed = relabel(before, placement, { withinNodes: isHierarchical(name) })
  return {
    algorithm: name,
    refused: null,
    after: qualityReport(placement, input.counts),
    moves: moveReport(before, placement, options.expertBytes),
    movesRelabelled: moveReport(before, renamed, options.expertBytes),
    links: linkLoad(placement, input.counts),
    milliseconds,
  }
}
