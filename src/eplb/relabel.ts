// Relabelling: the same plan with its GPUs and slots renamed so that as many experts as possible stay where they are.
// Loads per GPU are permuted, never changed. Only live GPUs with equal slot counts trade places; with `withinNodes`, whole
// nodes trade places first, so that what shared a node still does. Not here: any change of what shares a GPU.
import { aliveMask, nodesIn, slotStarts } from './cluster.js'
import { assign } from './hungarian.js'
import { checkSameSlots, makePlacement } from './placement.js'
import type { Placement } from './types.js'

/** Far below any sum of kept experts, so that an impossible pair is never taken when a possible one exists. */
const IMPOSSIBLE = -1e9

export interface RelabelOptions {
  /** Keep sets of GPUs that share a node together (needed after hierarchical plans). */
  readonly withinNodes?: boolean
}

/**
 * `to` renamed towards `from`: the assignment of GPUs keeps the most distinct experts per layer, then slots keep theirs.
 * @throws EplbError SY_EPLB_PLACEMENT when the sizes differ.
 */
export function relabel(from: Placement, to: Placement, options: RelabelOptions = {}): Placement {
  checkSameSlots(from, to)
  const { layers, physical, cluster } = to
  const starts = slotStarts(cluster)
  const map = new Int32Array(layers * physical)
  for (let l = 0; l < layers; l++) {
    const old = from.physicalToLogical.subarray(l * physical, (l + 1) * physical)
    const now = to.physicalToLogical.subarray(l * physical, (l + 1) * physical)
    const kept = keptExperts(from, to, old, now, starts)
    const target = options.withinNodes ? byNodes(to, kept) : byGpus(to, kept)
    const out = map.subarray(l * physical, (l + 1) * physical)
    for (let g = 0; g < cluster.gpus; g++)
      keepSlots(old, now.subarray(starts[g], starts[g + 1]), out, starts[target[g]!]!)
  }
  return makePlacement(map, to.logical, cluster, to.version)
}

/** `to` with the slots inside each GPU reordered so that as many as possible hold what they held in `from`. */
export function alignSlots(from: Placement, to: Placement): Placement {
  checkSameSlots(from, to)
  const { layers, physical, cluster } = to
  const starts = slotStarts(cluster)
  const map = new Int32Array(layers * physical)
  for (let l = 0; l < layers; l++) {
    const range = [l * physical, (l + 1) * physical] as const
    const now = to.physicalToLogical.subarray(...range)
    for (let g = 0; g < cluster.gpus; g++)
      keepSlots(
        from.physicalToLogical.subarray(...range),
        now.subarray(starts[g], starts[g + 1]),
        map.subarray(...range),
        starts[g]!,
      )
  }
  return makePlacement(map, to.logical, cluster, to.version)
}

/** kept[g][h] = distinct experts of plan GPU g that old GPU h holds; IMPOSSIBLE where they may not trade places. */
function keptExperts(
  from: Placement,
  to: Placement,
  old: Int32Array,
  now: Int32Array,
  starts: Int32Array,
): Float64Array {
  const { gpus, slotsPerGpu } = to.cluster
  const alive = aliveMask(to.cluster)
  const wasAlive = aliveMask(from.cluster)
  const kept = new Float64Array(gpus * gpus)
  const holders: number[][] = Array.from({ length: to.logical }, () => [])
  for (let h = 0; h < gpus; h++) {
    if (!wasAlive[h]) continue
    for (let p = starts[h]!; p < starts[h + 1]!; p++) {
      const list = holders[old[p]!]!
      if (list.at(-1) !== h) if (!list.includes(h)) list.push(h)
    }
  }
  for (let g = 0; g < gpus; g++) {
    const seen = new Set<number>()
    for (let p = starts[g]!; p < starts[g + 1]!; p++) {
      const e = now[p]!
      if (seen.has(e)) continue
      seen.add(e)
      for (const h of holders[e]!) kept[g * gpus + h]!++
    }
    for (let h = 0; h < gpus; h++)
      if (g !== h && (slotsPerGpu[g] !== slotsPerGpu[h] || !alive[g] || !alive[h])) kept[g * gpus + h] = IMPOSSIBLE
  }
  return kept
}

function byGpus(to: Placement, kept: Float64Array): Int32Array {
  return assign(kept, to.cluster.gpus)
}

function byNodes(to: Placement, kept: Float64Array): Int32Array {
  const { gpus, nodeOfGpu } = to.cluster
  const nodes = nodesIn(to.cluster)
  const members = Array.from({ length: nodes }, (_, n) =>
    Array.from({ length: gpus }, (_, g) => g).filter(g => nodeOfGpu[g] === n),
  )
  const inner = new Map<number, Int32Array>()
  const value = new Float64Array(nodes * nodes).fill(IMPOSSIBLE * gpus)
  for (let a = 0; a < nodes; a++) {
    for (let b = 0; b < nodes; b++) {
      const rows = members[a]!
      const columns = members[b]!
      if (rows.length !== columns.length) continue
      const block = Float64Array.from(rows.flatMap(g => columns.map(h => kept[g * gpus + h]!)))
      const choice = assign(block, rows.length)
      inner.set(a * nodes + b, choice)
      value[a * nodes + b] = choice.reduce((sum, c, r) => sum + block[r * rows.length + c]!, 0)
    }
  }
  const nodeTo = assign(value, nodes)
  const target = new Int32Array(gpus)
  for (let a = 0; a < nodes; a++) {
    const b = nodeTo[a]!
    for (const [i, g] of members[a]!.entries()) target[g] = members[b]![inner.get(a * nodes + b)![i]!]!
  }
  return target
}

/** Writes `experts` into the slots that begin at `start`: those that a slot already holds stay, the rest fill up in order. */
function keepSlots(old: Int32Array, experts: Int32Array, out: Int32Array, start: number): void {
  const left = Array.from(experts)
  const free: number[] = []
  for (let i = 0; i < experts.length; i++) {
    const at = left.indexOf(old[start + i]!)
    if (at < 0) free.push(start + i)
    else {
      out[start + i] = old[start + i]!
      left.splice(at, 1)
    }
  }
  for (const [i, slot] of free.entries()) out[slot] = left[i]!
}
