// Binding for a device whose memory the host cannot read: operations that the CPU does on host memory become kernels, and groups
// that have one kernel together are bound as one operation, in the place of the first. `fused: false` binds every operation by
// itself: the reference that fused programs are compared with.
import { Unreachable } from '../config/errors.js'
import type { DeviceOps, RopeShape } from '../device/device-ops.js'
import type { Kernel, Operand, ParameterVector } from '../device/ops.js'
import { type Binding, type BoundOperation, bindProgram } from './bind.js'
import { type Fusion, fuseOperations, type OperationGroup } from './fuse.js'
import type { Operation, Ref } from './operation.js'
import type { BufferSpec } from './program.js'

export interface CudaBinding extends Binding {
  readonly ops: DeviceOps
  /** Left out: true. */
  readonly fused?: boolean
}

/** @throws Unreachable for operations that need other ranks or the host */
export function bindCudaProgram(binding: CudaBinding): readonly BoundOperation[] {
  const { operations } = binding.program
  const groups: OperationGroup[] =
    binding.fused === false
      ? operations.map((_, first) => ({ first, count: 1, fusion: null }))
      : fuseOperations(operations)
  const resolver = new DeviceResolver(binding)
  const own = groups.map(({ first, fusion }) => {
    const kernel = fusion ? resolver.fusion(fusion) : resolver.operation(operations[first]!)
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

class DeviceResolver {
  readonly #binding: CudaBinding
  readonly #specs: ReadonlyMap<string, BufferSpec>

  constructor(binding: CudaBinding) {
    this.#binding = binding
    this.#specs = new Map(binding.program.buffers.map(b => [b.name, b]))
  }

  /** An operation that the CPU does on host memory, or null. */
  operation(op: Operation): Kernel | null {
    const { ops, idTables } = this.#binding
    const table = (name: string) => idTables.spans[name] ?? missing(`table ${name}`)
    switch (op.kind) {
      case 'clamp':
        return ops.clamp({ x: this.#at(op.args.x), width: op.args.x.width, limit: op.args.limit })
      case 'map_ids': {
        const { out, ids } = op.args
        return ops.mapIds({ out: this.#at(out), ids: this.#at(ids), table: table(op.args.table), width: ids.width })
      }
      case 'choose_replicas': {
        const { out, ids, requestKeys, positions, layer } = op.args
        return ops.chooseReplicas({
          out: this.#at(out),
          ids: this.#at(ids),
          requestKeys: this.#at(requestKeys),
          positions: this.#at(positions),
          table: table(op.args.table),
          columns: idTables.columns[op.args.table] ?? missing(`table ${op.args.table}`),
          layer,
          width: ids.width,
        })
      }
      default:
        return null
    }
  }

  fusion(fusion: Fusion): Kernel {
    const { ops } = this.#binding
    const rows = {
      x: this.#at(fusion.x),
      kv: this.#at(fusion.store.kv),
      slots: this.#at(fusion.store.slots),
      positions: this.#at(fusion.rope.positions),
      rope: this.#rope(fusion),
    }
    if (fusion.kind === 'latent_norm_rope_store') {
      const { weight, eps, width } = fusion.norm
      return ops.latentNormRopeStore({ ...rows, latent: width, norm: { weight: this.#vector(weight), eps } })
    }
    const { heads, kvHeads, headWidth, norms } = fusion
    const sizes = { heads, kvHeads, headWidth }
    if (norms === null) return ops.qkNormRopeStore({ ...rows, ...sizes })
    const bound = { q: this.#vector(norms.q), k: this.#vector(norms.k), eps: norms.eps }
    return ops.qkNormRopeStore({ ...rows, ...sizes, norms: bound })
  }

  #rope({ rope }: Fusion): RopeShape {
    const cosSin = this.#binding.ropeTables[rope.table] ?? missing(`rope table ${rope.table}`)
    return { width: rope.width, interleaved: rope.interleaved, cosSin }
  }

  #at(ref: Ref): Operand {
    const { buffers, activation } = this.#binding
    const spec = this.#specs.get(ref.buffer) ?? missing(`buffer ${ref.buffer}`)
    const span = buffers[ref.buffer] ?? missing(`memory of buffer ${ref.buffer}`)
    const operand = { span, offset: ref.column, stride: spec.columns }
    return spec.dtype === 'act' && activation === 'bf16' ? { ...operand, dtype: 'bf16' } : operand
  }

  #vector(name: string): ParameterVector {
    return this.#binding.weights.vectors[name] ?? missing(`vector ${name}`)
  }
}

function missing(what: string): never {
  throw new Unreachable(`${what} is missing`)
}
