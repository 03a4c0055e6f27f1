// Norms, add, copy, gather, rope, KV store and gates against float64, with strides, offsets and in place.
import { describe, expect, it } from 'vitest'
import {
  at,
  expectClose,
  expectGuards,
  expectSameBits,
  fillInts,
  from,
  type Implementation,
  noise,
  randomRows,
  rowsOf,
  sigmoid,
  spanOf,
  vectorOf,
} from './bench.suite.js'

const widths = [1, 3, 16, 40, 80, 133]

export function elementwiseSuite({ ops, leavesOut = [] }: Implementation): void {
  describe('norms', () => {
    it.each(widths)('rmsNorm, width %i, three groups, in place too', width => {
      const groups = 3
      const x = randomRows(1, 4, width * groups)
      const source = Float32Array.from(x.f)
      const weight = vectorOf(Array.from({ length: width }, noise(2)))
      const out = rowsOf(4, width * groups)
      const oracle = (r: number, c: number): number => {
        const first = at(x, r, c - (c % width))
        let squares = 0
        for (let i = 0; i < width; i++) squares += source[first + i]! ** 2
        return (source[at(x, r, c)]! / Math.sqrt(squares / width + 1e-5)) * weight.f[c % width]!
      }
      ops.rmsNorm({ out, x, weight, width, groups, eps: 1e-5 })(4)
      expectClose(out, oracle)
      const alone = rowsOf(4, width * groups)
      for (let r = 3; r >= 0; r--)
        ops.rmsNorm({ out: from(alone, r), x: from(x, r), weight, width, groups, eps: 1e-5 })(1)
      expectSameBits(alone, out)
      ops.rmsNorm({ out: x, x, weight, width, groups, eps: 1e-5 })(4)
      expectClose(x, oracle)
    })

    it.each(widths)('addRmsNorm, width %i', width => {
      const x = randomRows(1, 3, width)
      const residual = randomRows(2, 3, width, 1, 2)
      const sum = (r: number, c: number): number => Math.fround(before[at(residual, r, c)]! + x.f[at(x, r, c)]!)
      const before = Float32Array.from(residual.f)
      const weight = vectorOf(Array.from({ length: width }, noise(3)))
      const out = rowsOf(3, width)
      ops.addRmsNorm({ out, residual, x, weight, width, eps: 1e-6 })(3)
      expectClose(residual, sum, 0)
      expectClose(out, (r, c) => {
        let squares = 0
        for (let i = 0; i < width; i++) squares += sum(r, i) ** 2
        return (sum(r, c) / Math.sqrt(squares / width + 1e-6)) * weight.f[c]!
      })
    })
  })

  if (!leavesOut.includes('sumAddRmsNorm')) publishedSums(ops)

  describe('moves', () => {
    it.each(widths)('add and copy, width %i, in place too', width => {
      const a = randomRows(1, 3, width)
      const b = randomRows(2, 3, width, 0, 9)
      const out = rowsOf(3, width)
      const want = (r: number, c: number): number => Math.fround(first[at(a, r, c)]! + b.f[at(b, r, c)]!)
      const first = Float32Array.from(a.f)
      ops.add({ out, a, b, width })(3)
      expectClose(out, want, 0)
      ops.add({ out: a, a, b, width })(3)
      expectClose(a, want, 0)
      const copied = rowsOf(3, width)
      ops.copy({ out: copied, x: out, width })(3)
      expectClose(copied, want, 0)
    })

    it('gatherRows reads through the index and refuses rows outside x', () => {
      const x = randomRows(1, 5, 19, 3, 0)
      const list = [4, 0, 0, 3]
      const index = fillInts(rowsOf(4, 1), r => list[r]!)
      const out = rowsOf(4, 19)
      ops.gatherRows({ out, x, index, width: 19 })(4)
      expectClose(out, (r, c) => x.f[at(x, list[r]!, c)]!, 0)
      fillInts(index, () => 1000)
      expect(() => ops.gatherRows({ out, x, index, width: 19 })(1)).toThrow(/outside/)
    })

    it('storeKv writes slots, skips negative ones and refuses slots outside the pool', () => {
      const kv = rowsOf(9, 30)
      const x = randomRows(1, 4, 13)
      const list = [8, -1, 0, 5]
      const slots = fillInts(rowsOf(4, 1), r => list[r]!)
      const inSlot = { ...kv, offset: kv.offset + 7 }
      ops.storeKv({ kv: inSlot, x, slots, width: 13 })(4)
      const guard = kv.f[0]!
      for (let s = 0; s < 9; s++)
        for (let c = 0; c < 30; c++) {
          const row = list.indexOf(s)
          const want = row >= 0 && c >= 7 && c < 20 ? x.f[at(x, row, c - 7)] : guard
          expect(kv.f[at(kv, s, c)]).toBe(want)
        }
      fillInts(slots, () => 100)
      expect(() => ops.storeKv({ kv: inSlot, x, slots, width: 13 })(1)).toThrow(/outside/)
    })
  })

  describe('rope', () => {
    const rows = 3
    it.each([
      [false, 8, 1],
      [true, 8, 4],
      [false, 64, 2],
      [true, 64, 3],
      [false, 10, 5],
      [true, 6, 5],
    ])('interleaved %s, width %i, %i heads, apart and in place', (interleaved, width, heads) => {
      const headStride = width + 4
      const half = width / 2
      const table = new Float32Array(20 * width)
      for (let p = 0; p < 20; p++)
        for (let i = 0; i < half; i++) {
          table[p * width + i] = Math.cos(p / 3 ** i)
          table[p * width + half + i] = Math.sin(p / 3 ** i)
        }
      const list = [0, 19, 7]
      const positions = fillInts(rowsOf(rows, 1), r => list[r]!)
      const x = randomRows(4, rows, heads * headStride)
      const source = Float32Array.from(x.f)
      const want = (r: number, h: number, c: number): number => {
        const i = c % half
        const first = at(x, r, h * headStride)
        const u = source[first + (interleaved ? 2 * i : i)]!
        const v = source[first + (interleaved ? 2 * i + 1 : half + i)]!
        const cosine = table[list[r]! * width + i]!
        const sine = table[list[r]! * width + half + i]!
        return c < half ? u * cosine - v * sine : v * cosine + u * sine
      }
      const out = rowsOf(rows, (heads - 1) * (width + 1) + width)
      const common = { xHeadStride: headStride, heads, width, positions, cosSin: spanOf(table), interleaved }
      ops.rope({ out, outHeadStride: width + 1, x, ...common })(rows)
      ops.rope({ out: x, outHeadStride: headStride, x, ...common })(rows)
      for (let r = 0; r < rows; r++)
        for (let h = 0; h < heads; h++)
          for (let c = 0; c < width; c++) {
            expect(out.f[at(out, r, h * (width + 1) + c)]).toBeCloseTo(want(r, h, c), 6)
            expect(x.f[at(x, r, h * headStride + c)]).toBeCloseTo(want(r, h, c), 6)
            if (c === width - 1)
              for (let g = 1; g <= 4; g++)
                expect(x.f[at(x, r, h * headStride + c + g)]).toBe(source[at(x, r, h * headStride + c + g)])
          }
      expectGuards(out)
      fillInts(positions, () => 40)
      expect(() => ops.rope({ out, outHeadStride: width + 1, x, ...common })(1)).toThrow(/outside/)
    })
  })

  describe('gates', () => {
    it.each(widths)('gatedActivation, width %i, both kinds', width => {
      const x = randomRows(1, 3, 2 * width)
      for (let i = 0; i < x.f.length; i++) if (x.f[i]! < 1e3) x.f[i]! *= 12
      x.f[at(x, 0, 0)] = -200
      x.f[at(x, 1, 0)] = 95
      const gate = (r: number, c: number): number => x.f[at(x, r, c)]!
      const out = rowsOf(3, width)
      ops.gatedActivation({ out, x, width, activation: { kind: 'silu' } })(3)
      expectClose(out, (r, c) => gate(r, c) * sigmoid(gate(r, c)) * gate(r, c + width))
      const activation = { kind: 'swiglu_clamped', limit: 7, alpha: 1.702 } as const
      ops.gatedActivation({ out, x, width, activation })(3)
      expectClose(out, (r, c) => {
        const g = Math.min(gate(r, c), 7)
        const u = Math.max(-7, Math.min(7, gate(r, c + width)))
        return g * sigmoid(1.702 * g) * (u + 1)
      })
    })

    it.each(widths)('sigmoidScale, width %i, plain and accumulating', width => {
      const x = randomRows(1, 3, width)
      const gate = randomRows(2, 3, 1)
      const out = rowsOf(3, width)
      const want = (r: number, c: number): number => x.f[at(x, r, c)]! * sigmoid(gate.f[at(gate, r)]!)
      ops.sigmoidScale({ out, x, gate, width })(3)
      expectClose(out, want)
      ops.sigmoidScale({ out, x, gate, width, accumulate: true })(3)
      expectClose(out, (r, c) => 2 * want(r, c))
    })
  })
}

function publishedSums(ops: Implementation['ops']): void {
  describe('sums of published rows', () => {
    const sumAddRmsNorm = ops.sumAddRmsNorm?.bind(ops)
    if (!sumAddRmsNorm) throw new Error('ranks of this device read what others published')

    it.each([1, 2, 3, 4, 5, 8, 9].flatMap(members => [1, 16, 40, 133].map(width => [members, width] as const)))(
      'of %i members, width %i: the bits of adding one after another, then addRmsNorm',
      (members, width) => {
        const [rows, first] = [3, 2]
        const xs = Array.from({ length: members }, (_, m) => randomRows(10 + m, rows + first, width, m % 2, m))
        const residual = randomRows(2, rows, width, 1, 2)
        const [expected, before] = [rowsOf(rows, width), rowsOf(rows, width)]
        ops.copy({ out: before, x: residual, width })(rows)
        const sum = rowsOf(rows, width)
        ops.copy({ out: sum, x: from(xs[0]!, first), width })(rows)
        for (const x of xs.slice(1)) ops.add({ out: sum, a: sum, b: from(x, first), width })(rows)
        const weight = vectorOf(Array.from({ length: width }, noise(3)))
        ops.addRmsNorm({ out: expected, residual: before, x: sum, weight, width, eps: 1e-6 })(rows)
        const out = rowsOf(rows, width)
        const place = fillInts(rowsOf(1, 1), () => first)
        const kernel = sumAddRmsNorm({ out, residual, xs, first: place, weight, width, eps: 1e-6 })
        // Another kernel bound in between takes nothing from it.
        sumAddRmsNorm({
          out: rowsOf(1, width),
          residual: rowsOf(1, width),
          xs: [xs[0]!],
          first: place,
          weight,
          width,
          eps: 1,
        })
        kernel(0)
        kernel(rows)
        expectSameBits(out, expected)
        expectSameBits(residual, before)
        expectGuards(out)
      },
    )

    it('refuses rows outside what is published, whatever `first` says', () => {
      const width = 5
      const args = {
        out: rowsOf(4, width),
        residual: rowsOf(4, width),
        weight: vectorOf([1, 1, 1, 1, 1]),
        width,
        eps: 1,
      }
      const first = rowsOf(1, 1)
      const kernel = sumAddRmsNorm({ ...args, first, xs: [randomRows(1, 9, width), randomRows(2, 4, width)] })
      for (const row of [-1, 40, 2 ** 31 - 1]) {
        fillInts(first, () => row)
        expect(() => kernel(1)).toThrow(/outside/)
      }
      expect(() => sumAddRmsNorm({ ...args, first, xs: [] })).toThrow()
    })
  })
}
