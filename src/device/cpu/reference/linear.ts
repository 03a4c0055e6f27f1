// Matrix products on packed weights, in double precision. Sums run over k in ascending order, one row at a time, so a
// row's result depends on nothing else.
import { f32View, i32View } from '../../memory.js'
import type { Kernel, Operand, PackedMatrix, ParameterVector } from '../../ops.js'
import { panelBytes } from '../packing.js'
import { f32Rows, i32Rows, parameters, perRow } from './rows.js'

/** Multiplies one row by one matrix of `m`: out[outAt + i] = sum over k of x[xAt + k] · W[i][k]. */
export type RowProduct = (index: number, x: Float32Array, xAt: number, out: Float64Array) => void

/** The product with a packed matrix, as a function of the matrix's index. `out` needs n rounded up to 16. */
export function rowProduct(m: PackedMatrix): RowProduct {
  const { n, k } = m
  const panels = Math.ceil(n / 16)
  const panel = panelBytes(m.kind, k) / 4
  const words = i32View(m.span)
  const floats = f32View(m.span)
  const low = new Float32Array(16)
  const high = new Float32Array(16)
  const lowBits = new Int32Array(low.buffer)
  const highBits = new Int32Array(high.buffer)
  return (index, x, xAt, out) => {
    out.fill(0)
    for (let p = 0; p < panels; p++) {
      let w = (index * m.strideBytes) / 4 + p * panel
      const to = p * 16
      if (m.kind === 'f32') {
        for (let c = 0; c < k; c++, w += 16) {
          const xc = x[xAt + c]!
          for (let l = 0; l < 16; l++) out[to + l]! += floats[w + l]! * xc
        }
        continue
      }
      for (let c = 0; c < k; c += 2, w += 16) {
        const x0 = x[xAt + c]!
        const x1 = c + 1 < k ? x[xAt + c + 1]! : 0
        for (let l = 0; l < 16; l++) {
          lowBits[l] = words[w + l]! << 16
          highBits[l] = words[w + l]! & 0xffff0000
        }
        for (let l = 0; l < 16; l++) out[to + l] = out[to + l]! + low[l]! * x0 + high[l]! * x1
      }
    }
  }
}

export const productBuffer = (n: number): Float64Array => new Float64Array(Math.ceil(n / 16) * 16)

/** Element [row, column] of matrix 0, for embed. */
export function elementOf(m: PackedMatrix): (row: number, column: number) => number {
  const panel = panelBytes(m.kind, m.k)
  if (m.kind === 'f32') {
    const f = f32View(m.span)
    return (r, c) => f[(Math.floor(r / 16) * panel) / 4 + c * 16 + (r % 16)]!
  }
  const words = i32View(m.span)
  const value = new Float32Array(1)
  const bits = new Int32Array(value.buffer)
  return (r, c) => {
    const pair = words[(Math.floor(r / 16) * panel) / 4 + (c >> 1) * 16 + (r % 16)]!
    bits[0] = c & 1 ? pair & 0xffff0000 : pair << 16
    return value[0]!
  }
}

export function linear(a: {
  out: Operand
  x: Operand
  weight: PackedMatrix
  bias?: ParameterVector
  accumulate?: boolean
}): Kernel {
  const { n, k } = a.weight
  const out = f32Rows(a.out, n)
  const x = f32Rows(a.x, k)
  const bias = parameters(a.bias)
  const product = rowProduct(a.weight)
  const sum = productBuffer(n)
  return perRow([out, x], r => {
    product(0, x.data, x.at(r), sum)
    const o = out.at(r)
    for (let i = 0; i < n; i++) {
      const y = sum[i]! + (bias ? bias[i]! : 0)
      out.data[o + i] = a.accumulate ? out.data[o + i]! + y : y
    }
  })
}

export function headLinear(a: {
  out: Operand
  outHeadStride: number
  x: Operand
  xHeadStride: number
  weight: PackedMatrix
}): Kernel {
  const { n, k, count } = a.weight
  const out = f32Rows(a.out, (count - 1) * a.outHeadStride + n)
  const x = f32Rows(a.x, (count - 1) * a.xHeadStride + k)
  const product = rowProduct(a.weight)
  const sum = productBuffer(n)
  return perRow([out, x], r => {
    for (let h = 0; h < count; h++) {
      product(h, x.data, x.at(r) + h * a.xHeadStride, sum)
      const o = out.at(r) + h * a.outHeadStride
      for (let i = 0; i < n; i++) out.data[o + i] = sum[i]!
    }
  })
}

export function embed(a: { out: Operand; ids: Operand; table: PackedMatrix }): Kernel {
  const { n, k } = a.table
  const out = f32Rows(a.out, k)
  const ids = i32Rows(a.ids)
  const element = elementOf(a.table)
  return perRow([out, ids], r => {
    const id = ids.data[ids.at(r)]!
    const o = out.at(r)
    const known = id >= 0 && id < n
    for (let c = 0; c < k; c++) out.data[o + c] = known ? element(id, c) : 0
  })
}
