// Expected traffic between nodes under a placement. A model, not a measurement: it knows counts, not which token came from
// where. Not here: bytes or seconds (the planner prices them).
import { aliveMask, gpuOfSlots, nodesIn } from './cluster.js'
import { sumSteps } from './counts.js'
import { checkSameModel } from './placement.js'
import type { Counts, LinkLoad, Placement } from './types.js'

/**
 * Shares of all routed (token, expert) pairs that cross nodes: sources are spread over live GPUs evenly; a token stays in
 * its node when the node holds the expert, else it picks among all replicas evenly.
 */
export function linkLoad(placement: Placement, counts: Counts): LinkLoad {
  checkSameModel(placement, counts)
  const { layers, logical, physical, cluster, physicalToLogical, replicaCounts } = placement
  const nodes = nodesIn(cluster)
  const alive = aliveMask(cluster)
  const gpuOf = gpuOfSlots(cluster)
  const weights = sumSteps(counts)
  const source = new Float64Array(nodes)
  for (let g = 0; g < cluster.gpus; g++)
    if (alive[g]) source[cluster.nodeOfGpu[g]!]! += 1 / (cluster.gpus - cluster.dead.length)
  const ingress = new Float64Array(nodes)
  const egress = new Float64Array(nodes)
  let total = 0
  for (let l = 0; l < layers; l++) {
    const onNode = new Int32Array(nodes * logical)
    for (let p = 0; p < physical; p++)
      if (alive[gpuOf[p]!]) onNode[cluster.nodeOfGpu[gpuOf[p]!]! * logical + physicalToLogical[l * physical + p]!]!++
    for (let e = 0; e < logical; e++) {
      const weight = weights[l * logical + e]!
      total += weight
      let outside = 0
      for (let n = 0; n < nodes; n++) {
        if (onNode[n * logical + e]! > 0) continue
        egress[n]! += weight * source[n]!
        outside += weight * source[n]!
      }
      for (let n = 0; n < nodes; n++)
        ingress[n]! += (outside * onNode[n * logical + e]!) / replicaCounts[l * logical + e]!
    }
  }
  const share = (x: number) => (total > 0 ? x / total : 0)
  return {
    crossing: share(egress.reduce((a, b) => a + b, 0)),
    ingress: Array.from(ingress, share),
    egress: Array.from(egress, share),
  }
}
