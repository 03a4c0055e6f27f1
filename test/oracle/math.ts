// Plain dense arithmetic in double precision for the oracle. Nothing here is fast, blocked or shared with the product.
import type { OracleCheckpoint, Rows } from './tensors.js'

/** y[n] = Σ_k W[n, k] x[k] */
export function multiply(weight: Rows, x: Float64Array): Float64Array {
  const y = new Float64Array(weight.length)
  for (const [n, row] of weight.entries()) {
    if (row.length !== x.length) throw new Error(`${row.length} columns against ${x.length} values`)
    let sum = 0
    for (let k = 0; k < x.length; k++) sum += row[k]! * x[k]!
    y[n] = sum
  }
  return y
}

/** A linear layer `name` with its bias, if the checkpoint has one. */
export function linear(c: OracleCheckpoint, name: string): (x: Float64Array) => Float64Array {
  const weight = c.rows(`${name}.weight`)
  const bias = c.has(`${name}.bias`) ? c.flat(`${name}.bias`) : null
  return x => multiply(weight, x).map((v, i) => v + (bias ? bias[i]! : 0))
}

export function rmsNorm(x: Float64Array, weight: Float64Array, eps: number): Float64Array {
  if (x.length !== weight.length) throw new Error(`norm of ${weight.length} against ${x.length} values`)
  const scale = 1 / Math.sqrt(x.reduce((sum, v) => sum + v * v, 0) / x.length + eps)
  return x.map((v, i) => v * scale * weight[i]!)
}

export const add = (a: Float64Array, b: Float64Array): Float64Array => a.map((v, i) => v + b[i]!)
export const sigmoid = (v: number): number => 1 / (1 + Math.exp(-v))
export const silu = (v: number): number => v * sigmoid(v)

export function softmax(x: readonly number[]): number[] {
  const largest = Math.max(...x)
  const e = x.map(v => Math.exp(v - largest))
  const sum = e.reduce((a, b) => a + b, 0)
  return e.map(v => v / sum)
}

/** Indices of the `count` largest values, the lower index first among equals. */
export const topIndices = (x: readonly number[], count: number): number[] =>
  x
    .map((v, i) => [v, i] as const)
    .sort(([a, i], [b, j]) => b - a || i - j)
    .slice(0, count)
    .map(([, i]) => i)
