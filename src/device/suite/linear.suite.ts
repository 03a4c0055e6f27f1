// Matrix products: against a float64 sum, at sizes that are not multiples of anything, and bit for bit alone and in
// company.
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { WeightKind } from '../ops.js'
import {
  at,
  expectClose,
  expectGuards,
  expectSameBits,
  fillInts,
  from,
  type Implementation,
  matrixOf,
  noise,
  randomRows,
  rowsOf,
  vectorOf,
} from './bench.suite.js'

const kinds: WeightKind[] = ['f32', 'bf16']

export function linearSuite({ ops, packer }: Implementation): void {
  describe.each(kinds)('linear, %s', kind => {
    it.each([
      [1, 16, 16],
      [1, 1, 1],
      [3, 5, 7],
      [2, 80, 33],
      [9, 150, 80],
      [17, 24, 129],
      [5, 260, 64],
      [11, 33, 4100],
    ])('%i rows, n %i, k %i equal the float64 sum', (rows, n, k) => {
      const x = randomRows(1, rows, k)
      const w = matrixOf(packer, 2, kind, n, k)
      const out = rowsOf(rows, n)
      ops.linear({ out, x, weight: w })(rows)
      const tolerance = 2e-7 * Math.sqrt(k) * 4
      expectClose(
        out,
        (r, c) => {
          let sum = 0
          for (let i = 0; i < k; i++) sum += x.f[at(x, r, i)]! * w.w(0, c, i)
          return sum
        },
        tolerance,
      )
    })

    it('adds the bias, and the old value when accumulating', () => {
      const x = randomRows(3, 5, 21)
      const w = matrixOf(packer, 4, kind, 19, 21)
      const bias = vectorOf(Array.from({ length: 19 }, noise(5)))
      const out = randomRows(6, 5, 19)
      const before = Float32Array.from(out.f)
      ops.linear({ out, x, weight: w, bias, accumulate: true })(5)
      expectClose(out, (r, c) => {
        let sum = bias.f[c]!
        for (let i = 0; i < 21; i++) sum += x.f[at(x, r, i)]! * w.w(0, c, i)
        return sum + before[at(out, r, c)]!
      })
    })

    it('writes only the rows it is told to', () => {
      const x = randomRows(3, 4, 21)
      const out = rowsOf(4, 19)
      const kernel = ops.linear({ out, x, weight: matrixOf(packer, 4, kind, 19, 21) })
      kernel(0)
      kernel(2)
      expectGuards(out, 2)
      for (let i = at(out, 2); i < out.f.length; i++) expect(out.f[i]).toBe(out.f[0])
    })

    it('gives a row the same bits alone and in any company', () => {
      fc.assert(
        fc.property(
          fc.integer({ min: 1, max: 200 }),
          fc.integer({ min: 1, max: 70 }),
          fc.integer({ min: 2, max: 19 }),
          fc.boolean(),
          fc.integer(),
          (n, k, rows, extras, seed) => {
            const x = randomRows(seed >>> 0, rows, k)
            const weight = matrixOf(packer, (seed ^ 77) >>> 0, kind, n, k)
            const bias = vectorOf(Array.from({ length: n }, noise(5)))
            const out = randomRows(9, rows, n)
            const alone = randomRows(9, rows, n)
            const more = extras ? { bias, accumulate: true } : {}
            ops.linear({ out, x, weight, ...more })(rows)
            for (let r = 0; r < rows; r++) ops.linear({ out: from(alone, r), x: from(x, r), weight, ...more })(1)
            expectSameBits(out, alone)
          },
        ),
        { numRuns: 30, seed: 1 },
      )
    })

    it('headLinear multiplies each head by its own matrix', () => {
      const [heads, n, k, rows] = [5, 19, 23, 6]
      const x = randomRows(1, rows, heads * (k + 2))
      const w = matrixOf(packer, 2, kind, n, k, heads)
      const out = rowsOf(rows, (heads - 1) * (n + 3) + n)
      ops.headLinear({ out, outHeadStride: n + 3, x, xHeadStride: k + 2, weight: w })(rows)
      for (let r = 0; r < rows; r++)
        for (let h = 0; h < heads; h++)
          for (let c = 0; c < n; c++) {
            let sum = 0
            for (let i = 0; i < k; i++) sum += x.f[at(x, r, h * (k + 2) + i)]! * w.w(h, c, i)
            expect(out.f[at(out, r, h * (n + 3) + c)]).toBeCloseTo(sum, 5)
          }
    })

    it('embed copies rows of the table exactly; ids outside it give zeros', () => {
      const table = matrixOf(packer, 7, kind, 37, 45)
      const list = [0, 36, 17, -1, 37, 16, 15, 5]
      const ids = fillInts(rowsOf(list.length, 1), r => list[r]!)
      const out = rowsOf(list.length, 45)
      ops.embed({ out, ids, table })(list.length)
      expectClose(out, (r, c) => (list[r]! >= 0 && list[r]! < 37 ? table.w(0, list[r]!, c) : 0), 0)
    })
  })

  it('refuses operands outside their spans and more rows than they hold', () => {
    const x = randomRows(1, 3, 8, 0, 0)
    const weight = matrixOf(packer, 2, 'f32', 8, 8)
    const out = rowsOf(3, 8, 0, 0)
    expect(() => ops.linear({ out, x: { ...x, offset: 1e6 }, weight })).toThrow(/span/)
    expect(() => ops.linear({ out, x, weight })(100)).toThrow(/rows/)
    expect(() => ops.linear({ out, x, weight })(-1)).toThrow(/rows/)
  })
}
