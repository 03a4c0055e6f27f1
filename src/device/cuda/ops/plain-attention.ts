// Plain paged attention, a warp a row and head: the slow reference on the device, for shapes and types that no fast path takes.
import { Unreachable } from '../../../config/errors.js'
import type { Ops } from '../../ops.js'
import type { CudaKernels } from '../kernels.js'
import { faultAddress } from './faults.js'
import { bounded, ceilDiv, field, kernelOf, vectorAddress } from './operands.js'

const WIDEST = 1024
const WARPS = 4

export const plainAttentionOps = (d: CudaKernels): Pick<Ops, 'attention'> => ({
  attention({ out, q, kv, batch, heads, kvHeads, qkWidth, vWidth, keyOffset, valueOffset, scale, window, sinks }) {
    const widest = Math.max(qkWidth, vWidth)
    if (widest > WIDEST) throw new Unreachable(`heads of ${widest} elements, but a warp holds ${WIDEST}`)
    const [o, i] = [field(d, out, heads * vWidth), field(d, q, heads * qkWidth)]
    const cache = field(d, kv, Math.max(keyOffset + kvHeads * qkWidth, valueOffset + kvHeads * vWidth))
    const [s, p, table] = [field(d, batch.rowSequence), field(d, batch.positions), field(d, batch.pageTable)]
    if (o.type !== i.type || o.type !== cache.type) throw new Unreachable('attention over rows of different types')
    const entries = batch.pageTable.span.byteLength / 4 - batch.pageTable.offset
    const args = d
      .kernel('plain_attention.cu', `attention_${o.type}_${widest <= 128 ? 4 : 32}`)
      .bind(
        [
          ...(['u64', 'u64', 'u64', 'u64', 'u64', 'u64', 'u64', 'u64'] as const),
          ...(['i32', 'i32', 'i32', 'i32', 'i32', 'i32', 'i32', 'f32', 'i32', 'i32', 'i32', 'i32'] as const),
          ...(['u64', 'u64', 'u64', 'u64', 'u64', 'u64'] as const),
        ],
        [
          ...[o.address, i.address, cache.address, s.address, p.address, table.address],
          ...[vectorAddress(d, sinks, heads), faultAddress(d)],
          ...[0, heads, kvHeads, qkWidth, vWidth, keyOffset, valueOffset, scale, window ?? 0, batch.pageSize],
          ...[bounded(cache.capacity), bounded(entries)],
          ...[o.stride, i.stride, cache.stride, s.stride, p.stride, batch.pageTable.stride],
        ],
      )
    return kernelOf([o, i, s, p], rows => {
      args.set(8, rows)
      args.launch([ceilDiv(rows * heads, WARPS), 1, 1], 32 * WARPS)
    })
  },
})
