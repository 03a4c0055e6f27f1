// Reads packed f32 matrices back, to compare them with what they were packed from.
import { f32View } from '../src/device/memory.js'
import type { PackedMatrix } from '../src/device/ops.js'

/** Row-major [n, k] of matrix `index`, read from the panels of 16 rows. */
export function unpack(matrix: PackedMatrix, index = 0): number[][] {
  const f32 = f32View(matrix.span)
  return Array.from({ length: matrix.n }, (_, row) =>
    Array.from({ length: matrix.k }, (_, c) => {
      const panel = (index * matrix.strideBytes) / 4 + Math.floor(row / 16) * matrix.k * 16
      return f32[panel + c * 16 + (row % 16)]!
    }),
  )
}
