// The placement as the i32 tables that programs read: which replicas a logical expert has, and which physical experts a
// rank holds. A rank's experts are rows of one stack that holds every logical expert of the layer once, shared by all
// ranks of the node, so a replica costs no memory and moving one is a new table.
import { i32View, type MemoryLender } from '../device/memory.js'
import type { Placement } from '../eplb/index.js'
import type { IdTables } from '../program/index.js'

/**
 * Tables of one expert-parallel rank: `held.L` [physical] and `local.L` [own slots] give rows of the stack, -1 = not here;
 * `replicas.L` [logical, 1 + most replicas] gives a count and physical experts.
 */
export function placementTables(placement: Placement, epRank: number, lender: MemoryLender): IdTables {
  const { layers, logical, physical, cluster, maxReplicas } = placement
  const before = cluster.slotsPerGpu.slice(0, epRank).reduce((a, b) => a + b, 0)
  const slots = cluster.slotsPerGpu[epRank]!
  const spans: Record<string, ReturnType<MemoryLender['lend']>> = {}
  const columns: Record<string, number> = {}
  for (let layer = 0; layer < layers; layer++) {
    const held = lender.lend(physical * 4, `held experts of layer ${layer}`)
    const heldIds = i32View(held).fill(-1)
    for (let p = before; p < before + slots; p++) heldIds[p] = placement.physicalToLogical[layer * physical + p]!
    spans[`held.${layer}`] = held
    columns[`held.${layer}`] = 1

    const local = lender.lend(Math.max(1, slots) * 4, `own experts of layer ${layer}`)
    i32View(local).set(heldIds.subarray(before, before + slots))
    spans[`local.${layer}`] = local
    columns[`local.${layer}`] = 1

    const width = 1 + maxReplicas
    const replicas = lender.lend(logical * width * 4, `replicas of layer ${layer}`)
    const rows = i32View(replicas)
    for (let e = 0; e < logical; e++) {
      rows[e * width] = placement.replicaCounts[layer * logical + e]!
      for (let r = 0; r < maxReplicas; r++) {
        rows[e * width + 1 + r] = placement.logicalToPhysical[(layer * logical + e) * maxReplicas + r]!
      }
    }
    spans[`replicas.${layer}`] = replicas
    columns[`replicas.${layer}`] = width
  }
  return { spans, columns }
}
