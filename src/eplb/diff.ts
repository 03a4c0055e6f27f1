// What a change of placement costs: for every slot, where its new expert comes from. The rules and their order are those of
// SGLang's weight mover (eplb/expert_location_updater.py), so that its counts can be predicted. Not here: moving anything.
import { aliveMask, gpuOfSlots, nodesIn, slotStarts } from './cluster.js'
import { checkSameSlots } from './placement.js'
import type { MoveKind, MoveTotals, Placement, PlacementDiff, SlotMove } from './types.js'

/**
 * Moves that turn `from` into `to`, slots in order, layer by layer. Per slot the first rule that fits:
 * unchanged; the GPU holds it in another slot (same-gpu); an earlier slot of this GPU receives it (free-rider); a GPU of
 * the node holds it (same-node: the needing GPUs of the node are dealt in runs over its sources); else cross-node (the
 * needing GPUs of nodes without a source are dealt in runs over all sources). Dead GPUs neither send nor receive.
 * An expert that lived only on GPUs that have died since has source -1, cross-node: it comes from a backup.
 * @throws EplbError SY_EPLB_PLACEMENT when the sizes differ.
 */
export function diffPlacements(from: Placement, to: Placement): PlacementDiff {
  checkSameSlots(from, to)
  const { gpus } = to.cluster
  const slots: SlotMove[] = []
  const receivedPerGpu = new Array<number>(gpus).fill(0)
  const sentPerGpu = new Array<number>(gpus).fill(0)
  for (let layer = 0; layer < to.layers; layer++) {
    for (const move of layerMoves(from, to, layer)) {
      slots.push(move)
      if (move.kind !== 'same-node' && move.kind !== 'cross-node') continue
      receivedPerGpu[move.gpu]!++
      if (move.source! >= 0) sentPerGpu[move.source!]!++
    }
  }
  return { slots, totals: totalsOf(slots), receivedPerGpu, sentPerGpu }
}

/** Slots per kind. */
export function totalsOf(slots: readonly SlotMove[]): MoveTotals {
  const count = (kind: MoveKind) => slots.reduce((n, s) => n + (s.kind === kind ? 1 : 0), 0)
  const sameNode = count('same-node')
  const crossNode = count('cross-node')
  return {
    unchanged: count('unchanged'),
    sameGpu: count('same-gpu'),
    freeRider: count('free-rider'),
    sameNode,
    crossNode,
    moves: sameNode + crossNode,
  }
}

/** Expert weights of one layer in motion: the GPUs that hold each expert before, and those that will need it. */
function layerMoves(from: Placement, to: Placement, layer: number): SlotMove[] {
  const { physical, cluster } = to
  const gpuOf = gpuOfSlots(cluster)
  const starts = slotStarts(cluster)
  const canSend = aliveMask(from.cluster).map((a, g) => a & aliveMask(cluster)[g]!)
  const canReceive = aliveMask(cluster)
  const old = from.physicalToLogical.subarray(layer * physical, (layer + 1) * physical)
  const now = to.physicalToLogical.subarray(layer * physical, (layer + 1) * physical)
  const sources = gpusByExpert(old, to.logical, gpuOf, canSend)
  const holders = gpusByExpert(now, to.logical, gpuOf, canReceive)
  const moves: SlotMove[] = []
  for (let slot = 0; slot < physical; slot++) {
    const gpu = gpuOf[slot]!
    if (!canReceive[gpu]) continue
    const logical = now[slot]!
    const add = (kind: MoveKind, source: number | null) => moves.push({ layer, slot, gpu, logical, kind, source })
    const own = sources[logical]!.includes(gpu)
    if (own && old[slot] === logical) {
      add('unchanged', null)
      continue
    }
    if (own) {
      add('same-gpu', starts[gpu]! + old.subarray(starts[gpu], starts[gpu + 1]).indexOf(logical))
      continue
    }
    const earlier = now.subarray(starts[gpu], slot).indexOf(logical)
    if (earlier >= 0) {
      add('free-rider', starts[gpu]! + earlier)
      continue
    }
    const { kind, source } = sender(sources[logical]!, holders[logical]!, gpu, cluster.nodeOfGpu, nodesIn(cluster))
    add(kind, source)
  }
  return moves
}

function gpusByExpert(map: Int32Array, logical: number, gpuOf: Int32Array, mask: Uint8Array): number[][] {
  const out: number[][] = Array.from({ length: logical }, () => [])
  for (let slot = 0; slot < map.length; slot++) {
    const gpu = gpuOf[slot]!
    const list = out[map[slot]!]!
    if (mask[gpu] && list.at(-1) !== gpu) list.push(gpu)
  }
  return out
}

function sender(
  sources: readonly number[],
  holders: readonly number[],
  gpu: number,
  nodeOfGpu: readonly number[],
  nodes: number,
): { kind: 'same-node' | 'cross-node'; source: number } {
  const node = nodeOfGpu[gpu]!
  const needing = holders.filter(g => !sources.includes(g))
  const sourcesHere = sources.filter(g => nodeOfGpu[g] === node)
  if (sourcesHere.length > 0) {
    const needingHere = needing.filter(g => nodeOfGpu[g] === node)
    return { kind: 'same-node', source: dealt(sourcesHere, needingHere, gpu) }
  }
  const served = new Uint8Array(nodes)
  for (const g of sources) served[nodeOfGpu[g]!] = 1
  const remote = needing.filter(g => !served[nodeOfGpu[g]!])
  return { kind: 'cross-node', source: sources.length === 0 ? -1 : dealt(sources, remote, gpu) }
}

/** Deals `needing` in consecutive runs over `sources`, the first (n mod c) runs one longer; whose run `gpu` is in. */
function dealt(sources: readonly number[], needing: readonly number[], gpu: number): number {
  const short = Math.floor(needing.length / sources.length)
  const longer = needing.length % sources.length
  const at = needing.indexOf(gpu)
  const inLonger = longer * (short + 1)
  return sources[at < inLonger ? Math.floor(at / (short + 1)) : longer + Math.floor((at - inLonger) / short)]!
}
