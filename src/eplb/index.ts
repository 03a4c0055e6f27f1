// Public face of eplb: plan a placement of experts from their load, judge it, move to it, and pick replicas.
// Pure functions over plain data: no I/O, no clock, no randomness of its own.

export { EplbError } from './errors.js'
export type * from './reports/types.js'
export type * from './types.js'
// Functions that follow, with these signatures:
//   makeCounts(values: number[][] | number[][][] | {data, steps, layers, experts}): Counts     checked
//   makeCluster({gpus, nodes?, physical? | slotsPerGpu?, dead?}): Cluster                      nodes = number of nodes
//   makePlacement(physicalToLogical: number[][] | Int32Array, logical, cluster, version?): Placement   checked
//   trivialPlacement(layers, logical, cluster): Placement
//   algorithmChoices(): {name, summary}[]; getAlgorithm(name): BalancingAlgorithm
//   quality(placement, counts): LayerQuality; gpuLoads(placement, counts): Float64Array [layers][gpus]
//   physicalToLogicalCounts(physicalCounts [steps][layers][physical] Float64Array, steps, placement): Counts
//   diffPlacements(from, to): PlacementDiff; relabel(from, to, {withinNodes}): Placement
//   planReport(input, options): {report: PlanReport, placement: Placement}
//   compareReport(input, options): CompareReport
//   replayReport(counts, cluster, options): ReplayReport; sweepReport(counts, options): SweepReport
