// A lower bound of the peak rank load of one layer, whatever the placement, when replicas share a load evenly. It says how
// far from optimal a plan can be at most; it is not always reached. Not here: anything that finds a placement.
import { aliveMask, liveSlots } from './cluster.js'
import type { Cluster } from './types.js'

/**
 * The greatest of two bounds for weights [experts]:
 * 1. the mean load of live GPUs that have slots;
 * 2. the largest piece and its company. If the largest piece is at most T, every expert needs at least ceil(w/T) replicas,
 *    which leaves some extra slots over; no piece is then smaller than the least w / (ceil(w/T) + left over), and the
 *    GPU of the largest piece fills its other slots with such pieces at best. The least sum over all T is the bound;
 *    only the T at which some ceil(w/T) changes matter, and giving extra slots one by one to the largest piece visits
 *    exactly these.
 */
export function peakLowerBound(weights: Float64Array, cluster: Cluster): number {
  const alive = aliveMask(cluster)
  let useful = 0
  let fewest = Number.POSITIVE_INFINITY
  for (let g = 0; g < cluster.gpus; g++) {
    const slots = cluster.slotsPerGpu[g]!
    if (!alive[g] || slots === 0) continue
    useful++
    fewest = Math.min(fewest, slots)
  }
  let total = 0
  for (const w of weights) total += w
  if (total === 0) return 0
  const piece = largestPieceAndCompany(weights, liveSlots(cluster) - weights.length, fewest - 1)
  // Rounded down a little: the bound must never exceed a peak that was summed in another order.
  return Math.max(total / useful, piece) * (1 - 1e-12)
}

function largestPieceAndCompany(weights: Float64Array, extra: number, company: number): number {
  const copies = new Int32Array(weights.length).fill(1)
  let least = Number.POSITIVE_INFINITY
  for (let left = extra; left >= 0; left--) {
    let top = 0
    let smallest = Number.POSITIVE_INFINITY
    for (let e = 0; e < weights.length; e++) {
      if (weights[e]! * copies[top]! > weights[top]! * copies[e]!) top = e
      smallest = Math.min(smallest, weights[e]! / (copies[e]! + left))
    }
    least = Math.min(least, weights[top]! / copies[top]! + company * smallest)
    copies[top]!++
  }
  return least
}
