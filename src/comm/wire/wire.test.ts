// Rows on the wire: every format with native and reference kernels, which must agree bit for bit.
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { loadAddon } from '../../device/cpu/index.js'
import { HostMemoryLender } from '../../device/memory.js'
import { CounterRandom, STREAM } from '../../runtime/random.js'
import { QUANT_BLOCK, WIRE_DTYPES, type WireDtype, wireFormat } from './format.js'
import { operandRows, type Rows, type WireKernels, wireRows } from './kernels.js'
import { createWireKernels } from './native.js'
import { referenceWireKernels } from './reference.js'

const lender = new HostMemoryLender()

/** f32 rows with `gap` elements between them. */
function floats(rows: number, hidden: number, gap = 0): Rows {
  const span = lender.lend((rows * (hidden + gap) + gap) * 4, 'test')
  return operandRows({ span, offset: gap, stride: hidden + gap }, wireFormat('f32', hidden))
}

const wire = (dtype: WireDtype, rows: number, hidden: number, roundScales = false): Rows => {
  const format = wireFormat(dtype, hidden, roundScales)
  return wireRows({ format, span: lender.lend(rows * format.rowBytes, 'test') }, rows)
}

const rowOf = (r: Rows, row: number): Float32Array => {
  const at = (r.byteOffset + row * r.rowBytes) / 4
  return r.f32.subarray(at, at + r.format.hidden)
}

/** Magnitudes over many binades, with zeros, tiny and equal values among them. */
function fillRandom(r: Rows, rows: number, seed: number): void {
  const random = new CounterRandom(seed, STREAM.benchmark)
  for (let row = 0; row < rows; row++) {
    const scale = 2 ** (random.below(24) - 12)
    const to = rowOf(r, row)
    for (let c = 0; c < to.length; c++) {
      const kind = random.below(16)
      to[c] = kind === 0 ? 0 : kind === 1 ? (random.unit() - 0.5) * scale * 1e-6 : (random.unit() - 0.5) * scale
    }
  }
}

const native = createWireKernels('native')
const kernels: [string, WireKernels][] = [['reference', referenceWireKernels]]
if (native !== referenceWireKernels) kernels.push(['native', native])

describe('wire formats', () => {
  it('have native kernels wherever the addon loads', () => {
    expect(native !== referenceWireKernels).toBe(loadAddon().addon !== undefined)
  })

  it('have rows of elements, then scales, in cache lines', () => {
    const bytes = WIRE_DTYPES.map(dtype => wireFormat(dtype, 300).rowBytes)
    expect(bytes).toEqual([1216, 640, 320, 320])
    expect(wireFormat('fp8', 300)).toMatchObject({ scales: 3, scaleOffset: 300 })
    expect(wireFormat('int8', 300)).toMatchObject({ scales: 1, scaleOffset: 300 })
    expect(wireFormat('bf16', 3)).toMatchObject({ scales: 0, rowBytes: 64 })
  })

  describe.each(kernels)('%s', (_, k) => {
    it.each([false, true])('keep values within their half steps (rounded scales: %s)', roundScales => {
      fc.assert(
        fc.property(fc.integer({ min: 1, max: 300 }), fc.integer({ min: 0, max: 1e6 }), (hidden, seed) => {
          const x = floats(3, hidden, 5)
          fillRandom(x, 3, seed)
          for (const dtype of WIRE_DTYPES) {
            const w = wire(dtype, 3, hidden, roundScales)
            const y = floats(3, hidden)
            k.transfer({ from: x, to: w, n: 3 })
            k.transfer({ from: w, to: y, n: 3 })
            for (let r = 0; r < 3; r++) {
              const given = rowOf(x, r)
              const got = rowOf(y, r)
              for (let c = 0; c < hidden; c++) {
                const bound = halfStep(dtype, given, c, roundScales)
                if (!(Math.abs(given[c]! - got[c]!) <= bound))
                  throw new Error(`${dtype} [${r}, ${c}]: ${given[c]} became ${got[c]}, bound ${bound}`)
              }
            }
          }
        }),
        { numRuns: 15 },
      )
    })

    it('keep what a format holds exactly', () => {
      const x = floats(1, 256)
      rowOf(x, 0).set(Float32Array.from({ length: 256 }, (_, i) => (i % 15) * 2 ** (i % 5)))
      for (const dtype of ['f32', 'bf16'] as const) {
        const w = wire(dtype, 1, 256)
        const y = floats(1, 256)
        k.transfer({ from: x, to: w, n: 1 })
        k.transfer({ from: w, to: y, n: 1 })
        expect(rowOf(y, 0)).toEqual(rowOf(x, 0))
      }
    })

    it('decode a block with an element that is not finite to NaN throughout, and no other block', () => {
      for (const bad of [Number.NaN, Number.POSITIVE_INFINITY]) {
        const x = floats(1, 256)
        rowOf(x, 0).fill(1)
        rowOf(x, 0)[130] = bad
        for (const dtype of ['fp8', 'int8'] as const) {
          const w = wire(dtype, 1, 256)
          const y = floats(1, 256)
          k.transfer({ from: x, to: w, n: 1 })
          k.transfer({ from: w, to: y, n: 1 })
          const lost = [...rowOf(y, 0)].map(v => Number.isNaN(v))
          expect(lost).toEqual(Array.from({ length: 256 }, (_, i) => dtype === 'int8' || i >= 128))
        }
      }
    })

    it('scatter, sum and transfer by row numbers, and refuse numbers outside', () => {
      const x = floats(4, 8)
      fillRandom(x, 4, 3)
      const to = [floats(4, 8), floats(4, 8)]
      k.scatter({ from: x, to, n: 4, fromRow: 0, table: Int32Array.of(0, 3, 1, -1, -1, -1, 2, 0) })
      expect(rowOf(to[0]!, 1)).toEqual(rowOf(x, 1))
      expect(rowOf(to[1]!, 0)).toEqual(rowOf(x, 3))
      const out = floats(3, 8)
      rowOf(out, 2).fill(9)
      k.sum({ from: to, out, n: 3, outRow: 0, table: Int32Array.of(0, 3, 2, -1, -1, -1) })
      expect(rowOf(out, 0)).toEqual(rowOf(x, 0).map(v => v + v))
      expect(rowOf(out, 1)).toEqual(rowOf(x, 3))
      expect(rowOf(out, 2)).toEqual(new Float32Array(8))
      expect(() => k.scatter({ from: x, to, n: 1, fromRow: 0, table: Int32Array.of(4, 0) })).toThrow(/outside/)
      expect(() => k.sum({ from: to, out, n: 1, outRow: 4, table: Int32Array.of(0, 0) })).toThrow(/outside/)
      expect(() => k.transfer({ from: x, to: out, n: 1, toIndex: Int32Array.of(-1) })).toThrow(/outside/)
    })
  })

  it.runIf(kernels.length === 2)('have the same bits in native and reference kernels', () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 1, max: 400 }),
        fc.integer({ min: 1, max: 12 }),
        fc.boolean(),
        fc.integer({ min: 0, max: 1e6 }),
        (hidden, members, roundScales, seed) => {
          const random = new CounterRandom(seed, STREAM.benchmark)
          const x = floats(6, hidden)
          fillRandom(x, 6, seed)
          for (const dtype of WIRE_DTYPES) {
            const [a, b] = [referenceWireKernels, native].map(k => {
              const w = wire(dtype, 6, hidden, roundScales)
              k.transfer({ from: x, to: w, n: 6 })
              return w
            }) as [Rows, Rows]
            expect(b.u8).toEqual(a.u8)
            const from = Array.from({ length: members }, () => a)
            const table = Int32Array.from({ length: 6 * members }, () => random.below(8) - 2)
            const [s, t] = [referenceWireKernels, native].map(k => {
              const out = floats(6, hidden, 3)
              k.sum({ from, out, n: 6, outRow: 0, table })
              return out
            }) as [Rows, Rows]
            expect(t.i32).toEqual(s.i32)
          }
        },
      ),
      { numRuns: 15 },
    )
  })

  it('add weighted rows in any format, to a rounding error of the f64 sum', () => {
    const index = Int32Array.of(0, 2, -1, 1, -1, -1)
    const weights = Float32Array.of(0.3, 0.7, 9, -0.2, 1, 1)
    const x = floats(3, 40)
    fillRandom(x, 3, 11)
    for (const [, k] of kernels)
      for (const dtype of WIRE_DTYPES) {
        const from = wire(dtype, 3, 40)
        k.transfer({ from: x, to: from, n: 3 })
        const plain = floats(3, 40)
        k.transfer({ from, to: plain, n: 3 })
        const out = floats(2, 40)
        k.weightedSum({ from, to: out, n: 2, topK: 3, index, weights, toIndex: Int32Array.of(1, 0) })
        const row = (r: number, c: number) => rowOf(plain, r)[c]!
        for (let c = 0; c < 40; c++) {
          const exact = Math.fround(0.3) * row(0, c) + Math.fround(0.7) * row(2, c)
          const slack = 2 ** -23 * (Math.abs(0.3 * row(0, c)) + Math.abs(0.7 * row(2, c)))
          expect(Math.abs(rowOf(out, 1)[c]! - exact)).toBeLessThanOrEqual(slack)
          expect(rowOf(out, 0)[c]! + 0).toBe(Math.fround(Math.fround(-0.2) * row(1, c)) + 0)
        }
      }
  })
})

/** Half of the distance between neighbours of the format at the element, plus the rounding of scale and product. */
function halfStep(dtype: WireDtype, row: Float32Array, c: number, roundScales: boolean): number {
  const v = Math.abs(row[c]!)
  if (dtype === 'f32') return 0
  if (dtype === 'bf16') return v * 2 ** -8
  const from = dtype === 'fp8' ? c - (c % QUANT_BLOCK) : 0
  const block = row.subarray(from, dtype === 'fp8' ? from + QUANT_BLOCK : row.length)
  const amax = Math.max(...block.map(Math.abs))
  const slack = v * 2 ** -21
  if (dtype === 'int8') return Math.max(amax, 1e-30) / 127 / 2 + slack
  const scale = (Math.max(amax, 1e-4) / 448) * (roundScales ? 2 : 1)
  // Normal numbers have 3 bits after the point: half a step is 2^-4 of the value; below 2^-6 steps are 2^-9.
  return Math.max(v * 2 ** -4, scale * 2 ** -10) + slack
}
