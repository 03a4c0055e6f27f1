// Static replica choice: one slot per (rank, layer, expert), fixed until the next placement. The rules, their order and the
// random stream are those of SGLang (eplb/expert_location.py), so that a deployment can be predicted slot by slot.
import { gpuOfSlots } from '../cluster.js'
import type { Placement } from '../types.js'
import { PythonRandom } from './mersenne.js'

/** SGLang's seed. */
const SEED = 42

/** Slots that hold an expert of a layer, by replica rank. */
export function candidatesOf(placement: Placement, layer: number, expert: number): number[] {
  const { logical, maxReplicas, logicalToPhysical } = placement
  const at = (layer * logical + expert) * maxReplicas
  return Array.from(logicalToPhysical.subarray(at, at + maxReplicas)).filter(slot => slot >= 0)
}

/**
 * The slot every rank sends an expert's tokens to: [ranks][layers][logical]. Per expert, a rank takes the only replica; else
 * the first on its GPU; else the first in its node, if the node holds some but not all; the ranks that are left share
 * the replicas fairly at random. The random stream advances only for experts with ranks left.
 */
export function staticReplicaMap(placement: Placement): Int32Array {
  return build(placement, (layer, expert) => candidatesOf(placement, layer, expert))
}

/**
 * The row [layers][logical] that rank `rank` uses when the placement was given as a map (`--init-expert-location` with
 * physical_to_logical_map and an all-to-all backend): the rank first collapses each candidate list to its nearest replica
 * where it has one on its GPU or where its node narrows the choice, and only then draws. Ranks therefore draw
 * from different streams, and fairness between them holds only on average.
 */
export function collapsedStaticRow(placement: Placement, rank: number): Int32Array {
  const { layers, logical, cluster } = placement
  const gpuOf = gpuOfSlots(cluster)
  const all = build(placement, (layer, expert) => {
    const candidates = candidatesOf(placement, layer, expert)
    const nearest = nearestOf(candidates, rank, gpuOf, cluster.nodeOfGpu)
    return nearest === null ? candidates : [nearest]
  })
  return all.slice(rank * layers * logical, (rank + 1) * layers * logical)
}

function build(placement: Placement, candidates: (layer: number, expert: number) => readonly number[]): Int32Array {
  const { layers, logical, cluster } = placement
  const { gpus, nodeOfGpu } = cluster
  const gpuOf = gpuOfSlots(cluster)
  const random = new PythonRandom(SEED)
  const map = new Int32Array(gpus * layers * logical)
  for (let l = 0; l < layers; l++) {
    for (let e = 0; e < logical; e++) {
      const slots = candidates(l, e)
      const left: number[] = []
      for (let rank = 0; rank < gpus; rank++) {
        const nearest = slots.length === 1 ? slots[0]! : nearestOf(slots, rank, gpuOf, nodeOfGpu)
        if (nearest === null) left.push(rank)
        else map[(rank * layers + l) * logical + e] = nearest
      }
      if (left.length === 0) continue
      for (const [i, slot] of fairChoices(slots, left.length, random).entries())
        map[(left[i]! * layers + l) * logical + e] = slot
    }
  }
  return map
}

/** First slot on the GPU, else the first in the node if it holds some but not all, else null. */
function nearestOf(
  slots: readonly number[],
  rank: number,
  gpuOf: Int32Array,
  nodeOfGpu: readonly number[],
): number | null {
  const here = slots.find(s => gpuOf[s] === rank)
  if (here !== undefined) return here
  const inNode = slots.filter(s => nodeOfGpu[gpuOf[s]!] === nodeOfGpu[rank])
  return inNode.length > 0 && inNode.length < slots.length ? inNode[0]! : null
}

/** k picks, each candidate floor(k / n) or ceil(k / n) times, in random order. */
export function fairChoices(candidates: readonly number[], k: number, random: PythonRandom): number[] {
  const n = candidates.length
  const picks: number[] = []
  for (let i = 0; i < Math.floor(k / n); i++) picks.push(...candidates)
  picks.push(...random.sample(candidates, k % n))
  random.shuffle(picks)
  return picks
}
