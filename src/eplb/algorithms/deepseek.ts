// DeepSeek's EPLB, flat and hierarchical (deepseek-ai/EPLB eplb.py; SGLang eplb/eplb_algorithms/deepseek.py): replicate the
// heaviest experts, then pack replicas into GPUs; hierarchical first packs expert groups into nodes, so that all replicas
// of an expert share a node. Bit-equal with the PyTorch code run with stable sorts. Looks at counts summed over steps.
import { sumSteps } from '../counts.js'
import { makePlacement } from '../placement.js'
import type { AlgorithmName, BalancingAlgorithm, BalancingInput, BalancingResult } from '../types.js'
import { balancedPacking, replicate } from './packing.js'
import { checkHierarchical, evenSizes } from './sizes.js'

export interface Sizes {
  readonly layers: number
  readonly logical: number
  readonly physical: number
  readonly groups: number
  readonly nodes: number
  readonly gpus: number
}

export interface SlotMap {
  /** [layers][physical] */
  readonly expert: Int32Array
  /** [layers][physical] replica rank. */
  readonly rank: Int32Array
}

/** The hierarchical rule on float32 weights [layers][logical]; the flat one is groups = nodes = 1. */
export function packHierarchical(weights: Float32Array, sizes: Sizes): SlotMap {
  const { layers, logical, physical } = sizes
  const expert = new Int32Array(layers * physical)
  const rank = new Int32Array(layers * physical)
  for (let l = 0; l < layers; l++)
    packLayer(
      weights.subarray(l * logical, (l + 1) * logical),
      sizes,
      expert.subarray(l * physical),
      rank.subarray(l * physical),
    )
  return { expert, rank }
}

function packLayer(weights: Float32Array, sizes: Sizes, outExpert: Int32Array, outRank: Int32Array): void {
  const { logical, physical, groups, nodes, gpus } = sizes
  const byNode = expertsByNode(weights, groups, nodes)
  const expertsPerNode = logical / nodes
  const slotsPerNode = physical / nodes
  const gpusPerNode = gpus / nodes
  const slotsPerGpu = physical / gpus
  for (let node = 0; node < nodes; node++) {
    const experts = byNode.subarray(node * expertsPerNode, (node + 1) * expertsPerNode)
    const local = Float32Array.from(experts, e => weights[e]!)
    const replicas = replicate(local, slotsPerNode)
    const share = Float32Array.from(replicas.expert, e => local[e]! / replicas.count[e]!)
    const packing = balancedPacking(share, gpusPerNode)
    for (let i = 0; i < slotsPerNode; i++) {
      const slot = node * slotsPerNode + packing.pack[i]! * slotsPerGpu + packing.rank[i]!
      outExpert[slot] = experts[replicas.expert[i]!]!
      outRank[slot] = replicas.rank[i]!
    }
  }
}

/** Logical ids in the order in which nodes own them: groups packed into nodes by their summed weight. */
function expertsByNode(weights: Float32Array, groups: number, nodes: number): Int32Array {
  const groupSize = weights.length / groups
  const packing = balancedPacking(groupSums(weights, groups), nodes)
  const order = new Int32Array(weights.length)
  for (let g = 0; g < groups; g++) {
    const place = packing.pack[g]! * (groups / nodes) + packing.rank[g]!
    for (let i = 0; i < groupSize; i++) order[place * groupSize + i] = g * groupSize + i
  }
  return order
}

/** Float32 sums of consecutive groups. */
export function groupSums(weights: Float32Array, groups: number): Float32Array {
  const size = weights.length / groups
  const sums = new Float32Array(groups)
  for (let e = 0; e < weights.length; e++) sums[Math.floor(e / size)]! += weights[e]!
  return sums
}

function plan(name: AlgorithmName, input: BalancingInput): BalancingResult {
  const sizes = evenSizes(input, name, false)
  const hierarchical = name === 'deepseek_hierarchical'
  if (hierarchical) checkHierarchical(sizes, input, name)
  const flat = hierarchical ? {} : { groups: 1, nodes: 1 }
  const map = packHierarchical(Float32Array.from(sumSteps(input.counts)), { ...sizes, ...flat })
  return {
    algorithm: name,
    placement: makePlacement(map.expert, sizes.logical, input.cluster, nextVersion(input), map.rank),
  }
}

/** Versions grow by one with every plan. */
export const nextVersion = (input: BalancingInput): number => (input.current ? input.current.version + 1 : 0)

export const deepseek: BalancingAlgorithm = {
  name: 'deepseek',
  summary: "DeepSeek's EPLB over all GPUs: best balance of the public ones, replicas anywhere",
  plan: input => plan('deepseek', input),
}

export const deepseekHierarchical: BalancingAlgorithm = {
  name: 'deepseek_hierarchical',
  summary:
    'expert groups packed into nodes first: less traffic between nodes with group-limited routing, worse balance',
  plan: input => plan('deepseek_hierarchical', input),
}
