// What the suites of products on a GPU share: sums in float64, and what results may differ by.
import { expect } from 'vitest'
import type { PackedMatrix } from '../../src/device/ops.js'
import type { Rows } from './gpu.js'

export { fromBf16 as bf16Value, toBf16 as bf16Bits } from '../number-encoding.js'
export { Gpu, openGpu, type Rows, UNTOUCHED } from './gpu.js'

export const silu = (x: number): number => x / (1 + Math.exp(-x))

/** Sum of products of row `r` of x and row `n` of W, and of their absolute values. */
export function dot(x: Rows, r: number, w: Float32Array, at: number, k: number): { sum: number; size: number } {
  let [sum, size] = [0, 0]
  for (let i = 0; i < k; i++) {
    const term = x.values[r * x.stride + i]! * w[at + i]!
    sum += term
    size += Math.abs(term)
  }
  return { sum, size }
}

/** What a product may differ by: tensor cores may cut a bit of f32 at each of their steps of 8 or more. */
export const sumBound = (size: number, k: number): number => Math.max(4, k / 8) * 2 ** -23 * size
/** Rounding of a result to bf16. */
export const storeBound = (want: number): number => Math.abs(want) * 2 ** -8 + 1e-30

export function expectWithin(got: number, want: number, bound: number, where: string): void {
  if (!(Math.abs(got - want) <= bound))
    expect.fail(`${where}: ${got}, expected ${want} within ${bound.toExponential(2)}`)
}

/** A product's element by definition, with its bound. `gated`: n columns, gate row c and up row n + c. */
export function product(
  x: Rows,
  r: number,
  w: PackedMatrix & { readonly values: Float32Array },
  group: number,
  c: number,
  gated: boolean,
): { want: number; bound: number } {
  const { n, k } = w
  const a = dot(x, r, w.values, (group * n + c) * k, k)
  if (!gated) return { want: a.sum, bound: sumBound(a.size, k) }
  const b = dot(x, r, w.values, (group * n + n / 2 + c) * k, k)
  const gate = silu(a.sum)
  const bound = 1.1 * Math.abs(b.sum) * sumBound(a.size, k) + Math.abs(gate) * sumBound(b.size, k)
  // silu through a fast exponential: a few units of f32 more.
  return { want: gate * b.sum, bound: bound + Math.abs(gate * b.sum) * 2 ** -18 }
}
