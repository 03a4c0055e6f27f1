// Rope alone, and the kernels that take rows from a projection to the cache: norms, rope and store in one pass.
import { Unreachable } from '../../../config/errors.js'
import type { DeviceOps } from '../../device-ops.js'
import type { MemorySpan } from '../../memory.js'
import type { Ops } from '../../ops.js'
import type { CudaKernels } from '../kernels.js'
import { faultAddress } from './faults.js'
import { bounded, ceilDiv, field, kernelOf, parameterField, vectorAddress, vectorWidth } from './operands.js'

/** A head's width: what a warp keeps. */
const WIDEST_HEAD = 512
const ROPE_WARPS = 4
const FUSED_WARPS = 8
/** Of a head, in a lane; and warps of a block of the kernel that works so. */
const LANE_ELEMENTS = 16
const LANE_WARPS = 4
/** Warps that an SM is given before one takes more than one group of heads. */
const WARPS_AN_SM = 32

/** Groups of a row's heads that a warp takes one after another: few rows are spread over all SMs, many share what a row has in common. */
export const stepsOf = (rows: number, groups: number, sms: number): number =>
  Math.min(groups, Math.max(1, Math.floor((rows * groups) / (sms * WARPS_AN_SM))))

const positionsOf = (table: MemorySpan, width: number): number => Math.floor(table.byteLength / 4 / width)

function checkHead(width: number): void {
  if (width > WIDEST_HEAD) throw new Unreachable(`heads of ${width} elements, but a warp holds ${WIDEST_HEAD}`)
}

type RopeOps = Pick<Ops, 'rope'> & Pick<DeviceOps, 'qkNormRopeStore' | 'latentNormRopeStore'>

export const ropeOps = (d: CudaKernels): RopeOps => ({
  rope({ out, outHeadStride, x, xHeadStride, heads, width, positions, cosSin, interleaved }) {
    checkHead(width)
    const o = field(d, out, (heads - 1) * outHeadStride + width)
    const i = field(d, x, (heads - 1) * xHeadStride + width)
    const p = field(d, positions)
    const args = d
      .kernel('rope.cu', `rope_${i.type}_${o.type}`)
      .bind(
        ['u64', 'u64', 'u64', 'u64', 'u64', 'i32', 'i32', 'i32', 'i32', 'i32', 'u64', 'u64', 'u64', 'u64', 'u64'],
        [
          ...[o.address, i.address, p.address, d.addressOf(cosSin), faultAddress(d)],
          ...[0, heads, width, interleaved ? 1 : 0, positionsOf(cosSin, width)],
          ...[o.stride, outHeadStride, i.stride, xHeadStride, p.stride],
        ],
      )
    return kernelOf([o, i, p], rows => {
      args.set(5, rows)
      args.launch([ceilDiv(rows * heads, ROPE_WARPS), 1, 1], 32 * ROPE_WARPS)
    })
  },

  qkNormRopeStore({ x, kv, slots, positions, heads, kvHeads, headWidth, norms, rope }) {
    checkHead(headWidth)
    if (rope.width > headWidth) throw new Unreachable('a rope wider than its head')
    const pieces = heads + 2 * kvHeads
    const [i, cache] = [field(d, x, pieces * headWidth), field(d, kv, 2 * kvHeads * headWidth)]
    const [s, p] = [field(d, slots), field(d, positions)]
    if (i.type !== cache.type) throw new Unreachable('a cache of another type than its rows')
    const [q, k] = [vectorAddress(d, norms?.q, headWidth), vectorAddress(d, norms?.k, headWidth)]
    const lanes = 2 ** Math.ceil(Math.log2(headWidth / LANE_ELEMENTS))
    const groups = ceilDiv(pieces * lanes, 32)
    const table = d.addressOf(rope.cosSin)
    // Eight elements of a row and eight f32 parameters at once.
    const byLanes =
      headWidth % LANE_ELEMENTS === 0 &&
      rope.width % LANE_ELEMENTS === 0 &&
      vectorWidth([8, 1], headWidth, [i, cache, ...[table, q, k].map(parameterField)]) === 8
    const form = !byLanes ? 'any' : rope.interleaved ? 'pairs' : 'halves'
    const args = d
      .kernel('fused_qk.cu', `qk_norm_rope_store_${i.type}_${form}`)
      .bind(
        [
          ...(['u64', 'u64', 'u64', 'u64', 'u64', 'u64', 'u64', 'u64', 'i32', 'i32', 'i32', 'i32', 'i32'] as const),
          ...(byLanes ? (['i32', 'i32'] as const) : (['i32'] as const)),
          ...(['f32', 'i32', 'i32', 'u64', 'u64', 'u64', 'u64'] as const),
        ],
        [
          ...[i.address, cache.address, s.address, p.address, table, q, k, faultAddress(d)],
          ...[0, heads, kvHeads, headWidth, rope.width],
          ...(byLanes ? [Math.log2(lanes), 1] : [rope.interleaved ? 1 : 0]),
          ...[norms?.eps ?? 0, bounded(cache.capacity), positionsOf(rope.cosSin, rope.width)],
          ...[i.stride, cache.stride, s.stride, p.stride],
        ],
        { programmatic: true },
      )
    return kernelOf([i, s, p], rows => {
      args.set(8, rows)
      if (!byLanes) return args.launch([ceilDiv(rows * pieces, FUSED_WARPS), 1, 1], 32 * FUSED_WARPS)
      const steps = stepsOf(rows, groups, d.properties.sms)
      args.set(14, steps)
      args.launch([ceilDiv(rows * ceilDiv(groups, steps), LANE_WARPS), 1, 1], 32 * LANE_WARPS)
    })
  },

  latentNormRopeStore({ x, kv, slots, positions, latent, norm, rope }) {
    checkHead(rope.width)
    const width = latent + rope.width
    const [i, cache, s, p] = [field(d, x, width), field(d, kv, width), field(d, slots), field(d, positions)]
    if (i.type !== cache.type) throw new Unreachable('a cache of another type than its rows')
    const w = vectorAddress(d, norm.weight, latent)
    const v = vectorWidth([4, 1], latent, [i, cache, parameterField(w)])
    const args = d
      .kernel('fused_qk.cu', `latent_norm_rope_store_${i.type}_${v}`)
      .bind(
        [
          ...(['u64', 'u64', 'u64', 'u64', 'u64', 'u64', 'u64'] as const),
          ...(['i32', 'i32', 'i32', 'i32', 'f32', 'i32', 'i32', 'u64', 'u64', 'u64', 'u64'] as const),
        ],
        [
          ...[i.address, cache.address, s.address, p.address, d.addressOf(rope.cosSin), w, faultAddress(d)],
          ...[0, latent, rope.width, rope.interleaved ? 1 : 0, norm.eps],
          ...[bounded(cache.capacity), positionsOf(rope.cosSin, rope.width)],
          ...[i.stride, cache.stride, s.stride, p.stride],
        ],
        { programmatic: true },
      )
    const threads = Math.min(256, ceilDiv(ceilDiv(latent, v), 32) * 32)
    return kernelOf([i, s, p], rows => {
      args.set(7, rows)
      args.launch([rows, 1, 1], threads)
    })
  },
})
