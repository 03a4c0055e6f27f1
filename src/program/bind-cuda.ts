// Binding for a device whose memory the host cannot read: operations that the CPU does on host memory become kernels, and groups
// that have one kernel together are bound as one operation, in the place of the first. `fused: false` binds every operation by
// itself: the reference that fused programs are compared with.
import { Unreachable } from '../config/errors.js'
import type { DeviceOps } from '../device/device-ops.js'
import type { Kernel } from '../device/ops.js'
import { type BoundOperation, bindProgram } from './bind.js'
import type { DispatchOperation } from './bind-dispatch.js'
import type { PeerExchange } from './bind-peers.js'
import { type Binding, Resolver, specsOf } from './binding.js'
import { type Fusion, fuseOperations, type OperationGroup } from './fuse.js'
import type { Operation } from './operation.js'

export interface CudaBinding extends Binding {
  readonly ops: DeviceOps
  /** Left out: true. */
  readonly fused?: boolean
  /** How rows get to the experts of other ranks; left out where no operation asks for it. */
  readonly exchange?: PeerExchange
}

/** @throws Unreachable for operations that need other ranks or the host */
export function bindCudaProgram(binding: CudaBinding): readonly BoundOperation[] {
  const { operations } = binding.program
  const groups: OperationGroup[] =
    binding.fused === false
      ? operations.map((_, first) => ({ first, count: 1, fusion: null }))
      : fuseOperations(operations)
  const resolver = new Resolver(binding, specsOf(binding.program))
  const own = groups.map(({ first, fusion }) => {
    const { ops } = binding
    const op = operations[first]!
    const kernel = fusion
      ? bindFusion(fusion, ops, resolver)
      : exchanges(op)
        ? binding.exchange?.bind(op, resolver)
        : hostOperation(op, ops, resolver)
    return kernel && { kernel, first }
  })
  // The rest is bound as on any device.
  const rest = groups.filter((_, i) => !own[i]).map(({ first }) => first)
  const program = { ...binding.program, operations: rest.map(first => operations[first]!) }
  const bound = bindProgram({ ...binding, program })
  const all = bound.map((op, i): BoundOperation => ({ ...op, index: rest[i]! }))
  for (const entry of own) {
    if (!entry) continue
    const { kernel, first: index } = entry
    const { kind, rows, layer } = operations[index]!
    all.push({ kind, rows, layer, index, how: 'kernel', kernel })
  }
  const foreign = all.find(op => op.how !== 'kernel')
  if (foreign) throw new Unreachable(`${foreign.kind} of layer ${foreign.layer} has no kernel on this device`)
  return all.sort((a, b) => a.index - b.index)
}

const EXCHANGE: readonly Operation['kind'][] = [
  'dispatch_send',
  'dispatch_receive',
  'dispatched_experts',
  'combine_send',
  'combine_receive',
]

const exchanges = (op: Operation): op is DispatchOperation => EXCHANGE.includes(op.kind)

/** An operation that the CPU does on host memory, or null. */
function hostOperation(op: Operation, ops: DeviceOps, r: Resolver): Kernel | null {
  const table = (name: string) => r.idTables.spans[name] ?? missing(`table ${name}`)
  switch (op.kind) {
    case 'clamp':
      return ops.clamp({ x: r.at(op.args.x), width: op.args.x.width, limit: op.args.limit })
    case 'map_ids': {
      const { out, ids } = op.args
      return ops.mapIds({ out: r.at(out), ids: r.at(ids), table: table(op.args.table), width: ids.width })
    }
    case 'choose_replicas': {
      const { out, ids, requestKeys, positions, layer } = op.args
      return ops.chooseReplicas({
        out: r.at(out),
        ids: r.at(ids),
        requestKeys: r.at(requestKeys),
        positions: r.at(positions),
        table: table(op.args.table),
        columns: r.idTables.columns[op.args.table] ?? missing(`table ${op.args.table}`),
        layer,
        width: ids.width,
      })
    }
    default:
      return null
  }
}

function bindFusion(fusion: Fusion, ops: DeviceOps, r: Resolver): Kernel {
  const { width, interleaved, positions, table } = fusion.rope
  const rows = {
    x: r.at(fusion.x),
    kv: r.at(fusion.store.kv),
    slots: r.at(fusion.store.slots),
    positions: r.at(positions),
    rope: { width, interleaved, cosSin: r.table(table) },
  }
  if (fusion.kind === 'latent_norm_rope_store') {
    const { weight, eps, width: latent } = fusion.norm
    return ops.latentNormRopeStore({ ...rows, latent, norm: { weight: r.vector(weight), eps } })
  }
  const { heads, kvHeads, headWidth, norms } = fusion
  const sizes = { heads, kvHeads, headWidth }
  if (norms === null) return ops.qkNormRopeStore({ ...rows, ...sizes })
  const bound = { q: r.vector(norms.q), k: r.vector(norms.k), eps: norms.eps }
  return ops.qkNormRopeStore({ ...rows, ...sizes, norms: bound })
}

function missing(what: string): never {
  throw new Unreachable(`${what} is missing`)
}
