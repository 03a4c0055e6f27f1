// The part of a cluster that can hold experts, renumbered without gaps, and the way between its slots and all slots.
// Not here: searching.
import { aliveMask, nodesIn, slotStarts } from '../../cluster.js'
import type { Cluster, Placement } from '../../types.js'
import type { LayerFrame } from './layer-state.js'

export interface LiveCluster {
  /** The frame of a layer with weights [experts]; moves are counted against `current` unless it is null. */
  frame(weights: Float64Array, current: Placement | null, layer: number): LayerFrame
  /** Live slots of layer `layer` of a map [layers][physical]. */
  pick(map: Int32Array, layer: number): Int32Array
  /** What the live slots hold in the placement in effect; -1 where its GPU was dead then. */
  pickCurrent(current: Placement, layer: number): Int32Array
  /** Writes live slots into one layer of a map. */
  put(expertAt: Int32Array, layer: Int32Array): void
}

export function liveCluster(cluster: Cluster): LiveCluster {
  const alive = aliveMask(cluster)
  const first = slotStarts(cluster)
  const live = Array.from(cluster.slotsPerGpu.keys()).filter(g => alive[g] && cluster.slotsPerGpu[g]! > 0)
  const starts = new Int32Array(live.length + 1)
  for (const [i, g] of live.entries()) starts[i + 1] = starts[i]! + cluster.slotsPerGpu[g]!
  const slots = starts[live.length]!
  const gpuOf = new Int32Array(slots)
  const slotOf = new Int32Array(slots)
  for (const [i, g] of live.entries()) {
    for (let k = 0; k < cluster.slotsPerGpu[g]!; k++) {
      gpuOf[starts[i]! + k] = i
      slotOf[starts[i]! + k] = first[g]! + k
    }
  }
  const nodes = nodesIn(cluster)
  const nodeShare = new Float64Array(nodes)
  for (let g = 0; g < cluster.gpus; g++)
    if (alive[g]) nodeShare[cluster.nodeOfGpu[g]!]! += 1 / (cluster.gpus - cluster.dead.length)
  const nodeOf = Int32Array.from(live, g => cluster.nodeOfGpu[g]!)
  const physical = first[cluster.gpus]!

  const pick = (map: Int32Array, layer: number) => Int32Array.from(slotOf, slot => map[layer * physical + slot]!)
  const pickCurrent = (current: Placement, layer: number) => {
    const wasAlive = aliveMask(current.cluster)
    const held = pick(current.physicalToLogical, layer)
    return held.map((e, s) => (wasAlive[live[gpuOf[s]!]!] ? e : -1))
  }
  return {
    pick,
    pickCurrent,
    put(expertAt, layer) {
      for (let s = 0; s < slots; s++) layer[slotOf[s]!] = expertAt[s]!
    },
    frame(weights, current, layer) {
      // A layer without load is planned as if its experts were equal.
      const sum = weights.reduce((a, b) => a + b, 0)
      const used = sum > 0 ? weights : new Float64Array(weights.length).fill(1)
      const total = sum > 0 ? sum : weights.length
      let held: Uint8Array | null = null
      if (current) {
        held = new Uint8Array(live.length * weights.length)
        for (const [s, e] of pickCurrent(current, layer).entries()) if (e >= 0) held[gpuOf[s]! * weights.length + e] = 1
      }
      return {
        weights: used,
        total,
        mean: total / (cluster.gpus - cluster.dead.length),
        idle: sum === 0,
        gpus: live.length,
        starts,
        gpuOf,
        nodes,
        nodeOf,
        nodeShare,
        held,
      }
    },
  }
}
