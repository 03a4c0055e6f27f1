// Matrix products of bf16 rows, and experts made of them, against float64: bounds as bf16.suite.ts derives them.
import { describe, expect, it } from 'vitest'
import type { Operand } from '../ops.js'
import {
  at,
  fillInts,
  type Implementation,
  matrixOf,
  noise,
  random,
  randomRows,
  rowsOf,
  sigmoid,
  vectorOf,
} from './bench.suite.js'
import { ADDING, expectNear, get, halfRows, PLACES, ROUNDING, randomHalf } from './half-rows.suite.js'

export function bf16ProductsSuite({ ops, packer }: Implementation): void {
  describe.each(PLACES)('bf16 products, rows %s', (_, offset, gap) => {
    const half = (seed: number, rows: number, width: number, scale = 1) =>
      randomHalf(seed, rows, width, offset, gap, scale)
    const empty = (rows: number, width: number) => halfRows(rows, width, offset, gap)

    it.each([
      [1, 16, 32, 'bf16'],
      [5, 33, 80, 'bf16'],
      [70, 24, 129, 'bf16'],
      [3, 7, 64, 'f32'],
      [200, 64, 256, 'bf16'],
    ] as const)('linear of %i rows, %i outputs, %i inputs, %s weights: into bf16 and f32', (rows, n, k, kind) => {
      const x = half(1, rows, k)
      const w = matrixOf(packer, 2, kind, n, k)
      const bias = vectorOf(Array.from({ length: n }, noise(3)))
      const table = Array.from({ length: rows * n }, (_x, i): [sum: number, magnitude: number] => {
        const [r, c] = [Math.floor(i / n), i % n]
        let [sum, magnitude] = [0, 0]
        for (let j = 0; j < k; j++) {
          const product = get(x, r, j) * w.w(0, c, j)
          sum += product
          magnitude += Math.abs(product)
        }
        return [sum, magnitude]
      })
      const sums = (r: number, c: number) => table[r * n + c]!
      const out = empty(rows, n)
      ops.linear({ out, x, weight: w, bias })(rows)
      // A library may round its product before the bias is added: two roundings.
      expectNear(
        out,
        (r, c) => sums(r, c)[0] + bias.f[c]!,
        (r, c) => (k + 2) * ADDING * (sums(r, c)[1] + 1) + ROUNDING * Math.abs(sums(r, c)[0]),
      )
      const wide = rowsOf(rows, n, 4, 4)
      for (let r = 0; r < rows; r++) for (let c = 0; c < n; c++) wide.f[at(wide, r, c)] = r - c / 4
      ops.linear({ out: wide, x, weight: w, accumulate: true })(rows)
      for (let r = 0; r < rows; r++)
        for (let c = 0; c < n; c++) {
          const [sum, magnitude] = sums(r, c)
          const wanted = sum + r - c / 4
          const error = Math.abs(wide.f[at(wide, r, c)]! - wanted)
          if (!(error <= (k + 2) * ADDING * (magnitude + Math.abs(wanted) + 1)))
            expect.fail(`row ${r}, column ${c}: off by ${error}`)
        }
    })

    it.each([
      [3, 19, 23],
      [4, 128, 64],
    ])('headLinear of %i heads, %i × %i', (heads, n, k) => {
      const rows = 6
      const x = half(1, rows, heads * (k + 8))
      const w = matrixOf(packer, 2, 'bf16', n, k, heads)
      const out = empty(rows, heads * n)
      ops.headLinear({ out, outHeadStride: n, x, xHeadStride: k + 8, weight: w })(rows)
      const sum = (r: number, c: number, of: (v: number) => number): number => {
        let total = 0
        for (let i = 0; i < k; i++)
          total += of(get(x, r, Math.floor(c / n) * (k + 8) + i) * w.w(Math.floor(c / n), c % n, i))
        return total
      }
      expectNear(
        out,
        (r, c) => sum(r, c, v => v),
        (r, c) => k * ADDING * sum(r, c, Math.abs),
      )
    })

    it.each([
      [10, 80, 24, 3, 1],
      [10, 80, 24, 3, 9],
      [6, 64, 32, 2, 150],
    ])('%i experts, hidden %i, inner %i, top %i, %i rows', (experts, hidden, inter, topK, rows) => {
      const x = half(1, rows, hidden)
      const gateUp = matrixOf(packer, 21, 'bf16', 2 * inter, hidden, experts)
      const down = matrixOf(packer, 22, 'bf16', hidden, inter, experts)
      const r0 = random(3)
      const ids = fillInts(rowsOf(rows, topK), () => r0.below(experts + 1) - 1)
      const weights = randomRows(5, rows, topK)
      const scratch: Operand = { ...halfRows(1, rows * topK * (3 * inter + hidden), 0, 0), offset: 0, stride: 0 }
      const out = empty(rows, hidden)
      const activation = { kind: 'silu' } as const
      ops.experts({ out, x, ids, weights, topK, gateUp, down, activation, scratch })(rows)
      const oracle = new Map<string, { inner: Float64Array; spread: Float64Array }>()
      const innerOf = (r: number, e: number) => {
        const key = `${r} ${e}`
        const known = oracle.get(key)
        if (known) return known
        const [inner, spread] = [new Float64Array(inter), new Float64Array(inter)]
        for (let i = 0; i < inter; i++) {
          let [g, u, gm, um] = [0, 0, 0, 0]
          for (let k = 0; k < hidden; k++) {
            const [a, b] = [get(x, r, k) * gateUp.w(e, i, k), get(x, r, k) * gateUp.w(e, inter + i, k)]
            g += a
            u += b
            gm += Math.abs(a)
            um += Math.abs(b)
          }
          const [ge, ue] = [
            ROUNDING * Math.abs(g) + hidden * ADDING * gm,
            ROUNDING * Math.abs(u) + hidden * ADDING * um,
          ]
          inner[i] = g * sigmoid(g) * u
          // The slope of silu is at most 1.1.
          spread[i] = 1.1 * ge * (Math.abs(u) + ue) + Math.abs(g * sigmoid(g)) * ue + ROUNDING * Math.abs(inner[i]!)
        }
        const entry = { inner, spread }
        oracle.set(key, entry)
        return entry
      }
      const value = (r: number, c: number): [want: number, slack: number] => {
        let [want, slack] = [0, 0]
        for (let s = 0; s < topK; s++) {
          const e = ids.i[at(ids, r, s)]!
          if (e < 0) continue
          const { inner, spread } = innerOf(r, e)
          let [y, error] = [0, 0]
          for (let i = 0; i < inter; i++) {
            y += inner[i]! * down.w(e, c, i)
            error += (spread[i]! + inter * ADDING * Math.abs(inner[i]!)) * Math.abs(down.w(e, c, i))
          }
          const weight = weights.f[at(weights, r, s)]!
          want += weight * y
          slack += Math.abs(weight) * (error + ROUNDING * Math.abs(y))
        }
        return [want, slack * 1.05]
      }
      expectNear(
        out,
        (r, c) => value(r, c)[0],
        (r, c) => value(r, c)[1],
      )
    })
  })
}
