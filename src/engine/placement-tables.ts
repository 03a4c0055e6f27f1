// The placement as the i32 tables that programs read: which replicas a logical expert has, and which physical experts a
// rank holds. A rank's experts are rows of one stack that holds every logical expert of the layer once, shared by all
// ranks of the node, so a replica costs no memory and moving one is a new table.
import type { MemoryLender, MemorySpan } from '../device/memory.js'
import type { Placement } from '../eplb/index.js'
import type { IdTables } from '../program/index.js'

/**
 * Tables of one expert-parallel rank: `held.L` [physical] and `local.L` [own slots] give rows of the stack, -1 = not here;
 * `replicas.L` [logical, 1 + most replicas] gives a count and physical experts.
 * @param write puts bytes into lent memory
 * @param ownExperts the stack is the rank's own and has a row for each of its slots
 */
export function placementTables(
  placement: Placement,
  epRank: number,
  lender: MemoryLender,
  write: (span: MemorySpan, bytes: Uint8Array) => void,
  ownExperts = false,
): IdTables {
  const { layers, logical, physical, cluster, maxReplicas } = placement
  const before = cluster.slotsPerGpu.slice(0, epRank).reduce((a, b) => a + b, 0)
  const slots = cluster.slotsPerGpu[epRank]!
  const spans: Record<string, MemorySpan> = {}
  const columns: Record<string, number> = {}
  const put = (name: string, values: Int32Array, width: number, purpose: string): void => {
    const span = lender.lend(Math.max(1, values.length) * 4, purpose)
    write(span, new Uint8Array(values.buffer, values.byteOffset, values.byteLength))
    spans[name] = span
    columns[name] = width
  }
  for (let layer = 0; layer < layers; layer++) {
    const held = new Int32Array(physical).fill(-1)
    for (let p = before; p < before + slots; p++) held[p] = placement.physicalToLogical[layer * physical + p]!
    put(`held.${layer}`, held, 1, `held experts of layer ${layer}`)
    const local = ownExperts
      ? Int32Array.from({ length: slots }, (_, slot) => slot)
      : held.slice(before, before + slots)
    put(`local.${layer}`, local, 1, `own experts of layer ${layer}`)

    const width = 1 + maxReplicas
    const rows = new Int32Array(logical * width)
    for (let e = 0; e < logical; e++) {
      rows[e * width] = placement.replicaCounts[layer * logical + e]!
      for (let r = 0; r < maxReplicas; r++) {
        rows[e * width + 1 + r] = placement.logicalToPhysical[(layer * logical + e) * maxReplicas + r]!
      }
    }
    put(`replicas.${layer}`, rows, width, `replicas of layer ${layer}`)
  }
  return { spans, columns }
}
