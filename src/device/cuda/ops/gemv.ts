// Products of a few rows on a GPU, each output by one or a few warps: how they are cut (pure) and their launches. Kernels: gemv.cu.
import type { Kernel, PackedMatrix } from '../../ops.js'
import type { CudaKernels } from '../kernels.js'
import { faultAddress } from './faults.js'

/** Rows of x that the kernels take at once. */
export const GEMV_ROWS = 4
const WARPS = 4
const THREADS = 32 * WARPS
/** Elements of k that a warp asks for at once, of each of its two rows of W. */
const AHEAD = 1024
const DOWN_THREADS = 256
const MOST_CHOICES = 32
const MOST_GRID_Y = 65535
/** The argument of gemv_dense that is set for each launch. */
const ROWS_AT = 4

export type GemvSplit = 1 | 2 | 4

/**
 * How many warps share the k of two rows of W: so many that each asks for its part at once, and more where rows are few.
 * Depends on the matrix alone, so that a row has the same bits in any company. Pure.
 */
export function gemvSplit(n: number, k: number, sms: number): GemvSplit {
  const wanted = (split: number): boolean => k > AHEAD * split || (n / 2) * split < 4 * sms
  return !wanted(1) ? 1 : !wanted(2) ? 2 : 4
}

export interface GemvRows {
  readonly address: number
  /** Elements between rows, and between the heads of a row. */
  readonly stride: number
  readonly headStride?: number
}

export interface GemvSpec {
  readonly x: GemvRows
  /** `count` matrices are heads: each has its own columns of x and out. */
  readonly weight: PackedMatrix
  readonly out: GemvRows & { readonly dtype: 'f32' | 'bf16' }
  /** Address of f32 [n], or 0. */
  readonly bias?: number
  readonly accumulate?: boolean
}

const aligned = ({ address, stride, headStride = 0 }: GemvRows): boolean =>
  address % 16 === 0 && stride % 8 === 0 && headStride % 8 === 0

/** Why the kernels cannot take these shapes; undefined when they can. */
export function refusesGemv({ x, weight }: Pick<GemvSpec, 'x' | 'weight'>): string | undefined {
  if (weight.kind !== 'bf16') return `weights are ${weight.kind}`
  if (weight.k % 8 !== 0 || weight.strideBytes % 16 !== 0) return 'rows of the matrix are not 16-byte aligned'
  if (!aligned(x)) return 'rows are not 16-byte aligned'
  return undefined
}

/** Any number of rows is right; the weights are read once for every GEMV_ROWS of them. */
export function bindGemv(d: CudaKernels, { x, weight, out, bias = 0, accumulate = false }: GemvSpec): Kernel {
  const { n, k, count } = weight
  const split = gemvSplit(n * count, k, d.properties.sms)
  const bind = (rows: 1 | 2 | 4) =>
    d
      .kernel('gemv.cu', `gemv_dense_${rows}_${out.dtype}`)
      .bind(
        [
          ...(['u64', 'u64', 'u64', 'u64', 'i32', 'i32', 'i32', 'i32', 'i32'] as const),
          ...(['u64', 'u64', 'u64', 'u64', 'u64'] as const),
        ],
        [
          ...[out.address, x.address, d.addressOf(weight.span), bias, 0, n, k, split, accumulate ? 1 : 0],
          ...[out.stride, x.stride, out.headStride ?? 0, x.headStride ?? 0, weight.strideBytes / 2],
        ],
        { programmatic: true },
      )
  const args = { 1: bind(1), 2: bind(2), 4: bind(4) }
  const columns = Math.ceil(n / ((2 * WARPS) / split))
  return rows => {
    if (rows === 0) return
    const together = rows === 1 ? 1 : rows === 2 ? 2 : 4
    args[together].set(ROWS_AT, rows)
    args[together].launch([columns, count, Math.ceil(rows / together)], THREADS)
  }
}

export interface GemvExpertsSpec {
  readonly x: GemvRows
  readonly out: GemvRows & { readonly dtype: 'f32' | 'bf16' }
  /** i32 and f32 rows of topK, `stride` apart. */
  readonly ids: GemvRows
  readonly weights: GemvRows
  readonly topK: number
  /** Gate rows first. */
  readonly gateUp: PackedMatrix
  readonly down: PackedMatrix
  /** Address of bf16 [slots, inter]. */
  readonly inner: number
}

export function refusesGemvExperts({ x, gateUp, down, inner, topK }: GemvExpertsSpec): string | undefined {
  if (topK > MOST_CHOICES) return `${topK} experts a token`
  return refusesGemv({ x, weight: gateUp }) ?? refusesGemv({ x: { address: inner, stride: down.k }, weight: down })
}

/** out = Σ over choices, ascending, of weight · (silu(x · gate) · (x · up)) · down. Two launches. */
export function bindGemvExperts(d: CudaKernels, a: GemvExpertsSpec): Kernel {
  const { x, out, ids, weights, topK, gateUp, down, inner } = a
  const inter = down.k
  const split = gemvSplit(gateUp.n * topK, gateUp.k, d.properties.sms)
  const first = d
    .kernel('gemv.cu', 'gemv_gate_up')
    .bind(
      [
        ...(['u64', 'u64', 'u64', 'u64', 'i32', 'i32', 'i32', 'u64', 'u64'] as const),
        ...(['i32', 'i32', 'i32', 'u64'] as const),
      ],
      [
        ...[inner, x.address, x.stride, ids.address, ids.stride, topK, gateUp.count, d.addressOf(gateUp.span)],
        ...[gateUp.strideBytes / 2, inter, gateUp.k, split, faultAddress(d)],
      ],
      { programmatic: true },
    )
  const second = d
    .kernel('gemv.cu', `gemv_down_${out.dtype}`)
    .bind(
      [
        ...(['u64', 'u64', 'u64', 'u64', 'i32', 'u64', 'i32', 'i32', 'i32', 'u64', 'u64'] as const),
        ...(['i32', 'i32'] as const),
      ],
      [
        ...[out.address, out.stride, inner, ids.address, ids.stride, weights.address, weights.stride, topK],
        ...[down.count, d.addressOf(down.span), down.strideBytes / 2, down.n, down.k],
      ],
      { programmatic: true },
    )
  const gateColumns = Math.ceil(inter / (WARPS / split))
  return rows => {
    if (rows === 0) return
    if (rows * topK > MOST_GRID_Y) throw new RangeError(`${rows} rows are too many for a product of few`)
    first.launch([gateColumns, rows * topK, 1], THREADS)
    second.launch([Math.ceil(down.n / 2), rows, 1], DOWN_THREADS)
  }
}
