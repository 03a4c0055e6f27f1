// Public face of eplb: plan a placement of experts from their load, judge it, move to it, and pick replicas.
// Pure functions over plain data: no I/O, no clock, no randomness of its own.

export { algorithmChoices, autoPick, getAlgorithm } from './algorithms/registry.js'
export { DEFAULT_LAMBDA, DEFAULT_LINK_WEIGHT } from './algorithms/switchyard/switchyard.js'
export { dynamicReplica, fakeRouterLogits } from './choice/dynamic.js'
export { type LeastPeak, leastPeakShares, sampleShare } from './choice/least-peak.js'
export { candidatesOf, collapsedStaticRow, staticReplicaMap } from './choice/static.js'
export { type ClusterOptions, liveSlots, makeCluster, nodesIn, physicalOf } from './cluster.js'
export { type FlatCounts, makeCounts, stepRange, sumSteps } from './counts.js'
export { diffPlacements, totalsOf } from './diff.js'
export { EplbError } from './errors.js'
export { linkLoad } from './links.js'
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
export { compareReport } from './reports/compare-report.js'
export { planReport } from './reports/plan-report.js'
export { replayReport } from './reports/replay-report.js'
export { sweepReport } from './reports/sweep-report.js'
export type * from './reports/types.js'
export { type Drift, type SyntheticOptions, syntheticCounts } from './synthetic.js'
export type * from './types.js'
