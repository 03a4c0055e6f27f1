// Public face of eplb: plan a placement of experts from their load, judge it, move to it, and pick replicas.
// Pure functions over plain data: no I/O, no clock, no randomness of its own.

export { algorithmChoices, autoPick, getAlgorithm } from './algorithms/registry.js'
export { DEFAULT_LAMBDA, DEFAULT_LINK_WEIGHT } from './algorithms/switchyard/switchyard.js'
export { type ClusterOptions, liveSlots, makeCluster, nodesIn, physicalOf } from './cluster.js'
export { type FlatCounts, makeCounts, stepRange, sumSteps } from './counts.js'
export { diffPlacements, totalsOf } from './diff.js'
export { EplbError } from './errors.js'
export {
  balancednessOf,
  balancednessPerStep,
  gpuLoads,
  meanBalancedness,
  physicalToLogicalCounts,
  quality,
  windowMeans,
} from './loads.js'
export { peakLowerBound } from './lower-bound.js'
export { makePlacement, placementRows, trivialPlacement } from './placement.js'
export { alignSlots, type RelabelOptions, relabel } from './relabel.js'
export type * from './reports/types.js'
export { type Drift, type SyntheticOptions, syntheticCounts } from './synthetic.js'
export type * from './types.js'
// Reports follow, with these signatures:
//   planReport(input: BalancingInput, options: PlanOptions): { report: PlanReport; placement: Placement }
//   compareReport(input: BalancingInput, options: CompareOptions): CompareReport
//   replayReport(counts: Counts, cluster: Cluster, options: ReplayOptions): ReplayReport
//   sweepReport(counts: Counts, options: SweepOptions): SweepReport
