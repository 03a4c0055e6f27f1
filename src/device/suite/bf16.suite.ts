// Operations of devices that hold activations in bf16: against float64 on the very numbers that the operands hold. Bounds are
// derived: rounding a result to 8 significant bits moves it by 2^-8 of itself at most, and a sum in f32 of k products is off by at
// most k · 2^-24 of the sum of their magnitudes. Where an operation rounds in between (experts), each rounded number passes
// 2^-8 of its own magnitude on.
import { describe, expect, it } from 'vitest'
import {
  at,
  fillInts,
  type Implementation,
  matrixOf,
  noise,
  randomRows,
  rowsOf,
  sigmoid,
  spanOf,
  vectorOf,
} from './bench.suite.js'
import { bf16AttentionSuite } from './bf16-attention.suite.js'
import { bf16ProductsSuite } from './bf16-products.suite.js'
import {
  ADDING,
  expectNear,
  get,
  halfRows,
  numbersOf,
  PLACES,
  place,
  ROUNDING,
  randomHalf,
  rotate,
  rotations,
  UNTOUCHED,
} from './half-rows.suite.js'

export function bf16Suite(implementation: Implementation): void {
  const { ops, packer } = implementation
  bf16ProductsSuite(implementation)
  bf16AttentionSuite(implementation)

  describe.each(PLACES)('bf16 rows %s', (_, offset, gap) => {
    const half = (seed: number, rows: number, width: number, scale = 1) =>
      randomHalf(seed, rows, width, offset, gap, scale)
    const empty = (rows: number, width: number) => halfRows(rows, width, offset, gap)

    it.each([
      [1, 64],
      [4, 128],
      [3, 40],
      [1, 2048],
      [1, 10240],
      [2, 1032],
      [1, 133],
    ])('rmsNorm of %i groups of %i, in place too, and from f32', (groups, width) => {
      const rows = 5
      const x = half(1, rows, groups * width)
      const before = numbersOf(x)
      const weight = vectorOf(Array.from({ length: width }, noise(2)))
      const normed = (line: readonly number[]): number[] => {
        const inverse = Array.from({ length: groups }, (_g, g) => {
          const squares = line.slice(g * width, (g + 1) * width).reduce((sum, v) => sum + v * v, 0)
          return 1 / Math.sqrt(squares / width + 1e-6)
        })
        return line.map((v, c) => v * inverse[Math.floor(c / width)]! * weight.f[c % width]!)
      }
      const wanted = before.map(normed)
      const out = empty(rows, groups * width)
      ops.rmsNorm({ out, x, weight, width, groups, eps: 1e-6 })(rows)
      expectNear(out, (r, c) => wanted[r]![c]!)
      ops.rmsNorm({ out: x, x, weight, width, groups, eps: 1e-6 })(rows)
      expectNear(x, (r, c) => wanted[r]![c]!)
      const wide = randomRows(3, rows, groups * width)
      ops.rmsNorm({ out, x: wide, weight, width, groups, eps: 1e-6 })(rows)
      const fromWide = Array.from({ length: rows }, (_r, r) =>
        Array.from(wide.f.subarray(at(wide, r), at(wide, r) + wide.width)),
      ).map(normed)
      expectNear(out, (r, c) => fromWide[r]![c]!)
    })

    it.each([8, 40, 133, 2048, 7168, 9000])('addRmsNorm, width %i: the residual stays f32', width => {
      const rows = 4
      const x = half(1, rows, width)
      const residual = rowsOf(rows, width, 4, 4)
      const value = noise(2)
      for (let r = 0; r < rows; r++) for (let c = 0; c < width; c++) residual.f[at(residual, r, c)] = value() * 3
      const before = Float32Array.from(residual.f)
      const weight = vectorOf(Array.from({ length: width }, noise(3)))
      const out = empty(rows, width)
      ops.addRmsNorm({ out, residual, x, weight, width, eps: 1e-5 })(rows)
      const sum = (r: number, c: number): number => Math.fround(before[at(residual, r, c)]! + get(x, r, c))
      const inverse = Array.from({ length: rows }, (_r, r) => {
        let squares = 0
        for (let c = 0; c < width; c++) squares += sum(r, c) ** 2
        return 1 / Math.sqrt(squares / width + 1e-5)
      })
      for (let r = 0; r < rows; r++)
        for (let c = 0; c < width; c++) expect(residual.f[at(residual, r, c)]).toBe(sum(r, c))
      expectNear(out, (r, c) => sum(r, c) * inverse[r]! * weight.f[c]!)
    })

    it.each([8, 19, 512])('add, copy, gather and store, width %i', width => {
      const [a, b] = [half(1, 4, width), half(2, 4, width)]
      const out = empty(4, width)
      ops.add({ out, a, b, width })(4)
      expectNear(out, (r, c) => get(a, r, c) + get(b, r, c))
      ops.copy({ out, x: a, width })(4)
      expectNear(out, (r, c) => get(a, r, c))
      const list = [3, 0, 0, 2]
      ops.gatherRows({ out, x: a, index: fillInts(rowsOf(4, 1), r => list[r]!), width })(4)
      expectNear(out, (r, c) => get(a, list[r]!, c))
      const kv = empty(7, width)
      const slots = [6, -1, 0, 3]
      ops.storeKv({ kv, x: a, slots: fillInts(rowsOf(4, 1), r => slots[r]!), width })(4)
      for (let s = 0; s < 7; s++)
        for (let c = 0; c < width; c++) {
          const row = slots.indexOf(s)
          expect(kv.bits[place(kv, s, c)]).toBe(row < 0 ? UNTOUCHED : a.bits[place(a, row, c)])
        }
    })

    it.each([8, 21, 768])('gates, width %i', width => {
      const x = half(1, 3, 2 * width, 6)
      const out = empty(3, width)
      ops.gatedActivation({ out, x, width, activation: { kind: 'silu' } })(3)
      const silu = (r: number, c: number) => get(x, r, c) * sigmoid(get(x, r, c)) * get(x, r, width + c)
      expectNear(out, silu, (r, c) => 1e-5 * Math.abs(silu(r, c)))
      const gate = randomRows(4, 3, 1)
      const y = half(5, 3, width)
      const scaled = (r: number, c: number) => get(y, r, c) * sigmoid(gate.f[at(gate, r)]!)
      ops.sigmoidScale({ out, x: y, gate, width })(3)
      expectNear(out, scaled, (r, c) => 1e-5 * Math.abs(scaled(r, c)))
      ops.sigmoidScale({ out, x: y, gate, width, accumulate: true })(3)
      expectNear(
        out,
        (r, c) => 2 * scaled(r, c),
        (r, c) => 2 * ROUNDING * Math.abs(scaled(r, c)),
      )
    })

    it.each([
      [false, 128, 3],
      [true, 64, 2],
      [false, 10, 4],
    ])('rope, interleaved %s, width %i, %i heads', (interleaved, width, heads) => {
      const { table, positions, list } = rotations(width)
      const x = half(1, 3, heads * (width + 8))
      const before = numbersOf(x)
      const out = empty(3, heads * width)
      const common = { heads, width, positions, cosSin: spanOf(table), interleaved }
      ops.rope({ out, outHeadStride: width, x, xHeadStride: width + 8, ...common })(3)
      expectNear(
        out,
        (r, c) => {
          const first = Math.floor(c / width) * (width + 8)
          return rotate(before[r]!.slice(first, first + width), table, list[r]!, c % width, interleaved)
        },
        () => 4 * ADDING,
      )
    })

    it('embed widens and keeps bf16 rows', () => {
      const table = matrixOf(packer, 7, 'bf16', 37, 48)
      const list = [0, 36, -1, 37, 5]
      const ids = fillInts(rowsOf(5, 1), r => list[r]!)
      const row = (r: number, c: number): number => (list[r]! >= 0 && list[r]! < 37 ? table.w(0, list[r]!, c) : 0)
      const out = empty(5, 48)
      ops.embed({ out, ids, table })(5)
      expectNear(out, row)
      const wide = rowsOf(5, 48, 4, 4)
      ops.embed({ out: wide, ids, table })(5)
      for (let r = 0; r < 5; r++) for (let c = 0; c < 48; c++) expect(wide.f[at(wide, r, c)]).toBe(row(r, c))
    })
  })
}
