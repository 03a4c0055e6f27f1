// The vec variants (SGLang eplb/eplb_algorithms/deepseek_vec.py): an extra slot goes where it lowers the sum over steps of
// the per-step largest piece the most, so that experts that peak together are seen; replicas are dealt to GPUs in snake
// order. Bit-equal with the PyTorch code run with stable sorts: float32 throughout. Needs redundancy % chunks = 0.
import { EplbError } from '../errors.js'
import { makePlacement } from '../placement.js'
import type { AlgorithmName, BalancingAlgorithm, BalancingInput, BalancingResult, Counts } from '../types.js'
import { groupSums, nextVersion } from './deepseek.js'
import { descending } from './packing.js'
import { checkHierarchical, type EvenSizes, evenSizes } from './sizes.js'
import { chunkSlots } from './vec-slots.js'

const f32 = Math.fround

function plan(name: AlgorithmName, input: BalancingInput): BalancingResult {
  const sizes = evenSizes(input, name, false)
  const hierarchical = name === 'deepseek_vec_hierarchical'
  if (hierarchical) checkHierarchical(sizes, input, name)
  const chunks = hierarchical ? sizes.nodes : 1
  const redundant = sizes.physical - sizes.logical
  if (redundant % chunks !== 0) {
    const what = `${redundant} redundant experts do not divide over ${chunks} nodes`
    const fix = `Use ${Math.ceil(redundant / chunks) * chunks} redundant experts`
    throw new EplbError('SY_EPLB_SIZES', { algorithm: name, what, fix })
  }
  const { layers, logical, physical } = sizes
  const map = new Int32Array(layers * physical)
  const rank = new Int32Array(layers * physical)
  for (let l = 0; l < layers; l++) {
    const order = hierarchical ? groupOrder(input.counts, l, sizes) : null
    const total = summed(input.counts, l, order !== null)
    const loads = layerLoads(input.counts, l, order)
    for (let c = 0; c < chunks; c++) {
      const first = c * (logical / chunks)
      const slots = chunkSlots(loads, input.counts.steps, logical, first, logical / chunks, physical / chunks)
      const slotTotals = Float32Array.from(slots.expert, i => total[order ? order[i]! : i]! / slots.count[i - first]!)
      const dealt = snake(slotTotals, sizes.slotsPerGpu)
      for (let p = 0; p < dealt.length; p++) {
        const i = slots.expert[dealt[p]!]!
        const slot = l * physical + c * (physical / chunks) + p
        map[slot] = order ? order[i]! : i
        rank[slot] = slots.rank[dealt[p]!]!
      }
    }
  }
  return { algorithm: name, placement: makePlacement(map, logical, input.cluster, nextVersion(input), rank) }
}

/** Loads of a layer [steps][logical] in float32, experts in `order`. */
function layerLoads({ steps, layers, experts, data }: Counts, layer: number, order: Int32Array | null): Float32Array {
  const loads = new Float32Array(steps * experts)
  for (let s = 0; s < steps; s++) {
    const from = (s * layers + layer) * experts
    if (order) for (let i = 0; i < experts; i++) loads[s * experts + i] = data[from + order[i]!]!
    else loads.set(data.subarray(from, from + experts), s * experts)
  }
  return loads
}

/** Loads of a layer summed over steps: exactly for whole numbers (flat), in float32 when the code converts first (hierarchical). */
function summed(counts: Counts, layer: number, inFloat32: boolean): Float32Array {
  const { steps, layers, experts } = counts
  const total = new Float64Array(experts)
  for (let s = 0; s < steps; s++) {
    const from = (s * layers + layer) * experts
    for (let e = 0; e < experts; e++) {
      const value = counts.data[from + e]!
      total[e] = inFloat32 ? f32(total[e]! + f32(value)) : total[e]! + value
    }
  }
  return Float32Array.from(total)
}

/**
 * Logical ids in node order: groups by load descending, each to the lightest node with room (float32 sums, first on
 * ties). Unlike the deepseek packing, nodes of one group are not the identity.
 */
function groupOrder(counts: Counts, layer: number, { groups, nodes, logical }: EvenSizes): Int32Array {
  const loads = groupSums(summed(counts, layer, true), groups)
  const capacity = groups / nodes
  const groupSize = logical / groups
  const load = new Float32Array(nodes)
  const held = new Int32Array(nodes)
  const order = new Int32Array(logical)
  for (const group of descending(loads)) {
    let best = -1
    for (let n = 0; n < nodes; n++) if (held[n]! < capacity && (best < 0 || load[n]! < load[best]!)) best = n
    const place = best * capacity + held[best]!++
    load[best]! += loads[group]!
    for (let i = 0; i < groupSize; i++) order[place * groupSize + i] = group * groupSize + i
  }
  return order
}

/** Order of slots on GPUs: by load descending, dealt to the GPUs forwards and backwards in turn. One slot a GPU: as is. */
function snake(loads: Float32Array, slotsPerGpu: number): Int32Array {
  const n = loads.length
  if (slotsPerGpu === 1) return Int32Array.from({ length: n }, (_, i) => i)
  const gpus = n / slotsPerGpu
  const sorted = descending(loads)
  const out = new Int32Array(n)
  for (let g = 0; g < gpus; g++)
    for (let round = 0; round < slotsPerGpu; round++)
      out[g * slotsPerGpu + round] = sorted[round * gpus + (round % 2 === 0 ? g : gpus - 1 - g)]!
  return out
}

export const deepseekVec: BalancingAlgorithm = {
  name: 'deepseek_vec',
  summary: 'looks at every step: extra slots go where they lower the sum of per-step peaks',
  plan: input => plan('deepseek_vec', input),
}

export const deepseekVecHierarchical: BalancingAlgorithm = {
  name: 'deepseek_vec_hierarchical',
  summary: 'deepseek_vec inside each node, expert groups packed into nodes first',
  plan: input => plan('deepseek_vec_hierarchical', input),
}
