// Balancing that survives dead GPUs (SGLang eplb/eplb_algorithms/elasticity_aware.py): with every GPU alive it is deepseek,
// flat or hierarchical; with some dead it is flat over the live ones, and dead GPUs' slots hold filler.
import { aliveMask } from '../cluster.js'
import { sumSteps } from '../counts.js'
import { makePlacement } from '../placement.js'
import type { AlgorithmName, BalancingAlgorithm, BalancingInput, BalancingResult } from '../types.js'
import { nextVersion, packHierarchical, type SlotMap } from './deepseek.js'
import { checkHierarchical, evenSizes } from './sizes.js'

function plan(name: AlgorithmName, input: BalancingInput): BalancingResult {
  const { cluster, counts } = input
  const sizes = evenSizes(input, name, true)
  const weights = Float32Array.from(sumSteps(counts))
  const live = cluster.gpus - cluster.dead.length
  let map: SlotMap
  if (live < cluster.gpus) {
    const onLive = packHierarchical(weights, {
      ...sizes,
      physical: sizes.slotsPerGpu * live,
      gpus: live,
      groups: 1,
      nodes: 1,
    })
    map = {
      expert: spread(onLive.expert, input, sizes.slotsPerGpu),
      rank: spread(onLive.rank, input, sizes.slotsPerGpu),
    }
  } else if (name === 'elasticity_aware_hierarchical') {
    checkHierarchical(sizes, input, name)
    map = packHierarchical(weights, sizes)
  } else map = packHierarchical(weights, { ...sizes, groups: 1, nodes: 1 })
  return { algorithm: name, placement: makePlacement(map.expert, sizes.logical, cluster, nextVersion(input), map.rank) }
}

/** [layers][live slots] → [layers][slots], zeros on dead GPUs. */
function spread(values: Int32Array, { cluster, counts }: BalancingInput, slotsPerGpu: number): Int32Array {
  const alive = aliveMask(cluster)
  const out = new Int32Array(counts.layers * cluster.gpus * slotsPerGpu)
  let from = 0
  for (let l = 0; l < counts.layers; l++) {
    for (let g = 0; g < cluster.gpus; g++) {
      if (!alive[g]) continue
      out.set(values.subarray(from, from + slotsPerGpu), (l * cluster.gpus + g) * slotsPerGpu)
      from += slotsPerGpu
    }
  }
  return out
}

export const elasticityAware: BalancingAlgorithm = {
  name: 'elasticity_aware',
  summary: 'deepseek over the GPUs that are alive',
  plan: input => plan('elasticity_aware', input),
}

export const elasticityAwareHierarchical: BalancingAlgorithm = {
  name: 'elasticity_aware_hierarchical',
  summary: 'deepseek_hierarchical while every GPU lives, flat over the live ones after',
  plan: input => plan('elasticity_aware_hierarchical', input),
}
