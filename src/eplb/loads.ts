// Loads: what a placement makes of expert counts when replicas share an expert's tokens evenly. Balancedness as SGLang
// reports it. Not here: which replica a single token takes (choice/).
import { aliveMask, gpuOfSlots } from './cluster.js'
import { sumSteps } from './counts.js'
import { EplbError } from './errors.js'
import { peakLowerBound } from './lower-bound.js'
import { checkSameModel } from './placement.js'
import type { Counts, LayerQuality, Placement } from './types.js'

/** Keeps idle layers at 1 instead of 0/0 (SGLang eplb/expert_distribution.py). */
const EPSILON = 1e-5

/** (mean + 1e-5) / (max + 1e-5) of loads of live GPUs: 1 = even, 1/gpus = everything on one. */
export const balancednessOf = (mean: number, max: number): number => (mean + EPSILON) / (max + EPSILON)

/** Load of every GPU [layers][gpus] for expert counts [layers][experts] summed over steps. */
export function gpuLoadsOf(placement: Placement, weights: Float64Array): Float64Array {
  const { layers, logical, physical, cluster, physicalToLogical, replicaCounts } = placement
  const gpuOf = gpuOfSlots(cluster)
  const alive = aliveMask(cluster)
  const out = new Float64Array(layers * cluster.gpus)
  for (let l = 0; l < layers; l++) {
    for (let p = 0; p < physical; p++) {
      const g = gpuOf[p]!
      if (!alive[g]) continue
      const e = l * logical + physicalToLogical[l * physical + p]!
      out[l * cluster.gpus + g]! += weights[e]! / replicaCounts[e]!
    }
  }
  return out
}

/** Load of every GPU [layers][gpus], in tokens summed over the counts' steps. */
export function gpuLoads(placement: Placement, counts: Counts): Float64Array {
  checkSameModel(placement, counts)
  return gpuLoadsOf(placement, sumSteps(counts))
}

/** Peak, mean, balancedness and lower bound of every layer. */
export function quality(placement: Placement, counts: Counts): LayerQuality {
  checkSameModel(placement, counts)
  const weights = sumSteps(counts)
  const loads = gpuLoadsOf(placement, weights)
  const { layers, logical, cluster } = placement
  const live = cluster.gpus - cluster.dead.length
  const peak = new Float64Array(layers)
  const mean = new Float64Array(layers)
  const balancedness = new Float64Array(layers)
  const lowerBound = new Float64Array(layers)
  for (let l = 0; l < layers; l++) {
    let max = 0
    let total = 0
    for (let g = 0; g < cluster.gpus; g++) max = Math.max(max, loads[l * cluster.gpus + g]!)
    for (let e = 0; e < logical; e++) total += weights[l * logical + e]!
    peak[l] = max
    mean[l] = total / live
    balancedness[l] = balancednessOf(mean[l]!, max)
    lowerBound[l] = peakLowerBound(weights.subarray(l * logical, (l + 1) * logical), cluster)
  }
  return { peak, mean, balancedness, lowerBound }
}

/** Mean balancedness over the layers that have any load; 1 when none has (dense layers say nothing). */
export function meanBalancedness(q: Pick<LayerQuality, 'balancedness' | 'mean'>): number {
  let sum = 0
  let loaded = 0
  for (const [l, b] of q.balancedness.entries()) {
    if (q.mean[l]! <= 0) continue
    sum += b
    loaded++
  }
  return loaded === 0 ? 1 : sum / loaded
}

/** Balancedness of every step [steps], mean over its loaded layers, under one placement. */
export function balancednessPerStep(placement: Placement, counts: Counts): Float64Array {
  checkSameModel(placement, counts)
  const { layers, logical, cluster } = placement
  const size = layers * logical
  const live = cluster.gpus - cluster.dead.length
  return Float64Array.from({ length: counts.steps }, (_, s) => {
    const loads = gpuLoadsOf(placement, counts.data.subarray(s * size, (s + 1) * size))
    const mean = new Float64Array(layers)
    const balancedness = new Float64Array(layers)
    for (let l = 0; l < layers; l++) {
      let max = 0
      let total = 0
      for (const load of loads.subarray(l * cluster.gpus, (l + 1) * cluster.gpus)) {
        max = Math.max(max, load)
        total += load
      }
      mean[l] = total / live
      balancedness[l] = balancednessOf(mean[l]!, max)
    }
    return meanBalancedness({ balancedness, mean })
  })
}

/** Running means over the last 10, 100 and 1000 steps, SGLang's windows: out[w][step]. */
export function windowMeans(perStep: Float64Array, windows: readonly number[] = [10, 100, 1000]): Float64Array[] {
  return windows.map(window => {
    let sum = 0
    return perStep.map((value, s) => {
      sum += value - (s >= window ? perStep[s - window]! : 0)
      return sum / Math.min(window, s + 1)
    })
  })
}

/**
 * Counts per logical expert from counts per slot: [steps][layers][physical] → [steps][layers][logical].
 * Filler slots of dead GPUs receive nothing, so their counts are left out.
 */
export function physicalToLogicalCounts(perSlot: Float64Array, steps: number, placement: Placement): Counts {
  const { layers, logical, physical, physicalToLogical, cluster } = placement
  if (perSlot.length !== steps * layers * physical)
    throw new EplbError('SY_EPLB_COUNTS_SIZE', {
      found: perSlot.length,
      steps,
      layers,
      experts: physical,
      expected: steps * layers * physical,
    })
  const alive = aliveMask(cluster)
  const gpuOf = gpuOfSlots(cluster)
  const data = new Float64Array(steps * layers * logical)
  for (let s = 0; s < steps; s++)
    for (let l = 0; l < layers; l++)
      for (let p = 0; p < physical; p++)
        if (alive[gpuOf[p]!])
          data[(s * layers + l) * logical + physicalToLogical[l * physical + p]!]! +=
            perSlot[(s * layers + l) * physical + p]!
  return Object.freeze({ steps, layers, experts: logical, data })
}
