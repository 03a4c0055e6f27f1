// Placements: made whole from a physical-to-logical map, checked, with their inverses. A Placement that exists is valid:
// every logical expert has a live slot and every id is in range. Not here: how a good map is found (algorithms/).
import { aliveMask, checkRoom, gpuOfSlots, physicalOf } from './cluster.js'
import { EplbError } from './errors.js'
import type { Cluster, Counts, Placement } from './types.js'

const bad = (what: string, fix: string) => new EplbError('SY_EPLB_PLACEMENT', { what, fix })

/**
 * A placement from a map [layers][physical] of logical ids (nested, or flat with `layers` known from its length).
 * `replicaRank`, flat like the map, orders the replicas of an expert; absent: by slot number.
 * Slots of dead GPUs may hold any id or -1; they become filler.
 * @throws EplbError SY_EPLB_PLACEMENT with the layer and slot at fault.
 */
export function makePlacement(
  map: Int32Array | readonly (readonly number[])[],
  logical: number,
  cluster: Cluster,
  version = 0,
  replicaRank?: Int32Array,
): Placement {
  const physical = physicalOf(cluster)
  const flat = map instanceof Int32Array ? map.slice() : flatten(map, physical)
  if (flat.length === 0 || flat.length % physical !== 0)
    throw bad(
      `a map of ${flat.length} entries is not a whole number of layers of ${physical} slots`,
      `Give ${physical} slots a layer, or change GPUs and redundant experts`,
    )
  if (!Number.isSafeInteger(logical) || logical < 1)
    throw bad(`${logical} logical experts`, 'Give at least 1 logical expert')
  checkRoom(cluster, logical)
  const layers = flat.length / physical
  const gpuOf = gpuOfSlots(cluster)
  const alive = aliveMask(cluster)
  const replicaCounts = new Int32Array(layers * logical)
  for (let l = 0; l < layers; l++) {
    for (let p = 0; p < physical; p++) {
      const at = l * physical + p
      if (!alive[gpuOf[p]!]) {
        flat[at] = 0
        continue
      }
      const e = flat[at]!
      if (!(e >= 0 && e < logical))
        throw bad(
          `layer ${l}, slot ${p} holds expert ${e}, but experts are 0 to ${logical - 1}`,
          'Use a placement of the same model',
        )
      replicaCounts[l * logical + e]!++
    }
    for (let e = 0; e < logical; e++)
      if (replicaCounts[l * logical + e] === 0)
        throw bad(
          `layer ${l} has no live slot for expert ${e}`,
          'Give every logical expert at least one slot on a live GPU',
        )
  }
  const maxReplicas = replicaCounts.reduce((a, b) => Math.max(a, b), 1)
  const logicalToPhysical = new Int32Array(layers * logical * maxReplicas).fill(-1)
  const next = new Int32Array(logical)
  for (let l = 0; l < layers; l++) {
    next.fill(0)
    for (let p = 0; p < physical; p++) {
      if (!alive[gpuOf[p]!]) continue
      const e = flat[l * physical + p]!
      const rank = replicaRank ? replicaRank[l * physical + p]! : next[e]!++
      logicalToPhysical[(l * logical + e) * maxReplicas + rank] = p
    }
  }
  return Object.freeze({
    layers,
    logical,
    physical,
    cluster,
    physicalToLogical: flat,
    logicalToPhysical,
    maxReplicas,
    replicaCounts,
    version,
  })
}

function flatten(rows: readonly (readonly number[])[], physical: number): Int32Array {
  const flat = new Int32Array(rows.length * physical)
  for (const [l, row] of rows.entries()) {
    if (!Array.isArray(row) || row.length !== physical)
      throw bad(
        `layer ${l} has ${Array.isArray(row) ? row.length : 'no'} slots, the cluster has ${physical}`,
        'Give one logical id for every slot, or change GPUs and redundant experts',
      )
    for (let p = 0; p < physical; p++) {
      const e: unknown = row[p]
      if (typeof e !== 'number' || !Number.isInteger(e) || Math.abs(e) > 0x7fffffff)
        throw bad(`layer ${l}, slot ${p} holds ${String(e)}, which is no expert id`, 'Use whole numbers')
      flat[l * physical + p] = e
    }
  }
  return flat
}

/**
 * Where SGLang starts: slot p holds expert p % N. On live slots only, counted over them, so that it also serves clusters
 * with dead GPUs.
 */
export function trivialPlacement(layers: number, logical: number, cluster: Cluster): Placement {
  const physical = physicalOf(cluster)
  const gpuOf = gpuOfSlots(cluster)
  const alive = aliveMask(cluster)
  const map = new Int32Array(layers * physical)
  for (let l = 0; l < layers; l++) {
    let next = 0
    for (let p = 0; p < physical; p++) if (alive[gpuOf[p]!]) map[l * physical + p] = next++ % logical
  }
  return makePlacement(map, logical, cluster)
}

/** The map as nested arrays [layers][physical], the value of SGLang's `physical_to_logical_map`. */
export function placementRows(placement: Placement): number[][] {
  const { layers, physical, physicalToLogical } = placement
  return Array.from({ length: layers }, (_, l) =>
    Array.from(physicalToLogical.subarray(l * physical, (l + 1) * physical)),
  )
}

/** Throws unless counts and placement describe the same model. */
export function checkSameModel(placement: Placement, counts: Counts): void {
  if (placement.layers === counts.layers && placement.logical === counts.experts) return
  throw new EplbError('SY_EPLB_COUNTS_MISMATCH', {
    countLayers: counts.layers,
    countExperts: counts.experts,
    layers: placement.layers,
    logical: placement.logical,
  })
}

/** Throws unless both placements have the same layers, experts and slots per GPU (nodes and dead GPUs may differ). */
export function checkSameSlots(from: Placement, to: Placement): void {
  const same =
    from.layers === to.layers &&
    from.logical === to.logical &&
    from.cluster.gpus === to.cluster.gpus &&
    from.cluster.slotsPerGpu.every((n, g) => n === to.cluster.slotsPerGpu[g])
  if (!same)
    throw bad(
      `${from.layers} layers of ${from.logical} experts in ${from.physical} slots against ${to.layers} layers of ${to.logical} experts in ${to.physical} slots, or other slots per GPU`,
      'Compare placements of the same model on the same GPUs',
    )
}
