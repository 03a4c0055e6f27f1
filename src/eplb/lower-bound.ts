// A lower bound of the peak rank load of one layer, whatever the placement, when replicas share a load evenly. It says how
// far from optimal a plan can be at most; it is not always reached. Not here: anything that finds a placement.
import { aliveMask } from './cluster.js'
import type { Cluster } from './types.js'

/**
 * The greatest of two bounds for weights [experts]:
 * 1. the mean load of live GPUs that have slots;
 * 2. the largest piece and its company. Let T be the largest piece w/c. Giving extra slots one by one to the largest piece
 *    visits every T that can be, each with the fewest replicas that allow it; T at stage r leaves the later slots over.
 *    The c pieces of that size either share a GPU (2T), or sit on c GPUs and share these with other pieces, at best with
 *    the smallest. The sum of the k smallest of the other pieces is their total less the sum of the largest ones, and
 *    splitting a piece further never raises a sum of largest ones: so the stage's own pieces bound it. The bound is the
 *    least over all stages.
 */
export function peakLowerBound(weights: Float64Array, cluster: Cluster): number {
  const alive = aliveMask(cluster)
  const slots = cluster.slotsPerGpu.filter((n, g) => alive[g] && n > 0).sort((a, b) => a - b)
  let total = 0
  for (const w of weights) total += w
  if (total === 0) return 0
  const mean = total / slots.length
  // Rounded down a little: the bound must never exceed a peak that was summed in another order.
  return Math.max(mean, largestPieceAndCompany(weights, total, slots, mean)) * (1 - 1e-12)
}

/** `slots`: those of live GPUs, ascending. Stops early at stages that cannot beat `mean` or the least so far. */
function largestPieceAndCompany(weights: Float64Array, total: number, slots: readonly number[], mean: number): number {
  const all = slots.reduce((a, b) => a + b, 0)
  const extra = all - weights.length
  const copies = new Int32Array(weights.length).fill(1)
  const tops = new Int32Array(extra + 1)
  for (let r = 0; r <= extra; r++) {
    let top = 0
    for (let e = 1; e < weights.length; e++) if (weights[e]! * copies[top]! > weights[top]! * copies[e]!) top = e
    tops[r] = top
    copies[top]!++
  }
  let least = Number.POSITIVE_INFINITY
  for (let r = extra; r >= 0; r--) {
    const top = tops[r]!
    copies[top]!--
    const largest = weights[top]! / copies[top]!
    if (largest >= least) break
    least = Math.min(least, stageBound(weights, copies, total, top, largest, slots, all))
    if (least <= mean) break
  }
  return least
}

function stageBound(
  weights: Float64Array,
  copies: Int32Array,
  total: number,
  top: number,
  largest: number,
  slots: readonly number[],
  all: number,
): number {
  const c = copies[top]!
  if (c > slots.length) return 2 * largest
  let company = -c
  for (let g = 0; g < c; g++) company += slots[g]!
  const others = new Float64Array(copies.reduce((a, b) => a + b, 0) - c)
  let i = 0
  for (let e = 0; e < weights.length; e++)
    if (e !== top) for (let k = 0; k < copies[e]!; k++) others[i++] = weights[e]! / copies[e]!
  others.sort()
  let rest = total - weights[top]!
  const larger = all - c - company
  for (let k = 0; k < larger && k < others.length; k++) rest -= others[others.length - 1 - k]!
  return Math.min(2 * largest, largest + Math.max(0, rest) / c)
}
