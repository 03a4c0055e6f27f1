// Grouped GEMM: one matrix for each expert, rows grouped by expert. y[r] = x[r] · W[expert of r]ᵀ + bias[expert of r].
//
// Contiguous: rows of all experts in one list, `m_indices` names each row's expert (-1: padding, not computed).
// Masked: a block of `capacity` rows for each expert, of which `masked_m` are valid.
// Made of Ops.linear kernels that each hold one expert's matrix, so a row has the bits that Ops.linear gives it anywhere.
import { subspan } from '../../device/memory.js'
import type { Kernel, Operand, Ops, PackedMatrix, ParameterVector } from '../../device/ops.js'
import { ExpertLayoutError } from './errors.js'
import { checkAlignment } from './permute-plan.js'

/** The matrices [n, k] of a rank's experts, and their biases one after another (`count`·n numbers). */
export interface GroupedWeight {
  readonly weight: PackedMatrix
  readonly bias?: ParameterVector
}

/** Expert e alone, as Ops.linear takes it. */
export function expertWeight(
  { weight, bias }: GroupedWeight,
  e: number,
): { weight: PackedMatrix; bias?: ParameterVector } {
  // The last matrix may end before its stride does.
  const from = e * weight.strideBytes
  const span = subspan(weight.span, from, Math.min(weight.strideBytes, weight.span.byteLength - from))
  const one = { ...weight, count: 1, span }
  if (!bias) return { weight: one }
  const { n } = weight
  return { weight: one, bias: { length: n, span: subspan(bias.span, e * n * 4, n * 4) } }
}

/** The operand that begins at row `row` of `o`. */
export const rowsFrom = (o: Operand, row: number): Operand => ({ ...o, offset: o.offset + row * o.stride })

/**
 * Kernels for segments that begin at multiples of the row alignment, bound when a segment first begins there and kept:
 * at most experts · rows / alignment of them, and after a while a step binds none.
 */
export class SegmentKernels {
  readonly #bind: (expert: number, row: number) => Kernel
  readonly #alignment: number
  readonly #blocks: number
  readonly #kernels = new Map<number, Kernel>()

  /** @param rows rows of the layout at most */
  constructor(rows: number, rowAlignment: number, bind: (expert: number, row: number) => Kernel) {
    checkAlignment(rowAlignment)
    this.#bind = bind
    this.#alignment = rowAlignment
    this.#blocks = Math.ceil(rows / rowAlignment)
  }

  /** Runs `rows` rows of `expert` from row `row` on. @throws ExpertLayoutError SY_EXPERTS_UNALIGNED */
  run(expert: number, row: number, rows: number): void {
    const block = row / this.#alignment
    if (!Number.isInteger(block))
      throw new ExpertLayoutError('SY_EXPERTS_UNALIGNED', { expert, row, alignment: this.#alignment })
    const key = expert * this.#blocks + block
    let kernel = this.#kernels.get(key)
    if (!kernel) {
      kernel = this.#bind(expert, row)
      this.#kernels.set(key, kernel)
    }
    kernel(rows)
  }

  get bound(): number {
    return this.#kernels.size
  }
}

/** Calls `each` for every run of equal ids in `m_indices`, padding left out. */
export function forEachSegment(
  mIndices: Int32Array,
  rows: number,
  each: (expert: number, row: number, rows: number) => void,
): void {
  for (let row = 0; row < rows; ) {
    const expert = mIndices[row]!
    let end = row + 1
    while (end < rows && mIndices[end] === expert) end++
    if (expert >= 0) each(expert, row, end - row)
    row = end
  }
}

/**
 * @param a.x [a.rows, k], `a.out` [a.rows, n]
 * @returns a function of `m_indices` and how many of its rows there are
 */
export function bindContiguousGemm(
  ops: Ops,
  a: GroupedWeight & { x: Operand; out: Operand; rows: number; rowAlignment: number },
): (mIndices: Int32Array, rows: number) => void {
  const segments = new SegmentKernels(a.rows, a.rowAlignment, (e, row) =>
    ops.linear({ ...expertWeight(a, e), x: rowsFrom(a.x, row), out: rowsFrom(a.out, row) }),
  )
  const run = (e: number, row: number, rows: number) => segments.run(e, row, rows)
  return (mIndices, rows) => {
    requireRoom(rows, a.rows)
    forEachSegment(mIndices, rows, run)
  }
}

/**
 * @param a.x [experts, a.capacity, k], `a.out` [experts, a.capacity, n]: row j of expert e is row e · capacity + j
 * @returns a function of `masked_m`, the valid rows of each expert; rows beyond them are neither read nor written
 */
export function bindMaskedGemm(
  ops: Ops,
  a: GroupedWeight & { x: Operand; out: Operand; capacity: number },
): (maskedM: Int32Array) => void {
  const kernels = Array.from({ length: a.weight.count }, (_, e) =>
    ops.linear({
      ...expertWeight(a, e),
      x: rowsFrom(a.x, e * a.capacity),
      out: rowsFrom(a.out, e * a.capacity),
    }),
  )
  return maskedM => runMasked(kernels, maskedM, a.capacity)
}

/** Runs each expert's kernel on its valid rows. @throws ExpertLayoutError SY_EXPERTS_TOO_MANY_ROWS */
export function runMasked(kernels: readonly Kernel[], maskedM: Int32Array, capacity: number): void {
  for (let e = 0; e < kernels.length; e++) {
    const rows = maskedM[e]!
    requireRoom(rows, capacity)
    if (rows > 0) kernels[e]!(rows)
  }
}

function requireRoom(rows: number, limit: number): void {
  if (rows > limit) throw new ExpertLayoutError('SY_EXPERTS_TOO_MANY_ROWS', { rows, what: 'rows', limit })
}
