// Packing: every source format into every kind, transposed, shifted, with odd edges and block scales, compared number by
// number with conversions written out here.
import { describe, expect, it } from 'vitest'
import { f32View, u16View } from '../memory.js'
import type { PackedMatrix, PackSource, SourceDtype, WeightKind } from '../ops.js'
import { type Implementation, lend, noise, random } from './bench.suite.js'

const size = { F32: 4, F16: 2, BF16: 2, F8_E4M3: 1 } as const

/** A tensor of random bit patterns that are numbers, and the numbers by definition of the format. */
function tensor(dtype: SourceDtype, count: number, seed: number): { bytes: Uint8Array; values: number[] } {
  const bytes = new Uint8Array(count * size[dtype] + 8).subarray(8)
  const view = new DataView(bytes.buffer, bytes.byteOffset)
  const next = noise(seed)
  const r = random(seed)
  const values = Array.from({ length: count }, (_, i) => {
    if (dtype === 'F32') {
      const v = Math.fround(next() * 100)
      view.setFloat32(i * 4, v, true)
      return v
    }
    const [exponentBits, fractionBits, bias] =
      dtype === 'F16' ? [5, 10, 15] : dtype === 'BF16' ? [8, 7, 127] : [4, 3, 7]
    const sign = r.below(2)
    let exponent = r.below(2 ** exponentBits - (dtype === 'F8_E4M3' ? 0 : 1))
    if (dtype === 'BF16') exponent = 100 + r.below(50)
    let fraction = r.below(2 ** fractionBits)
    if (dtype === 'F8_E4M3' && exponent === 15 && fraction === 7) fraction = 6
    const bits = (sign << (exponentBits + fractionBits)) | (exponent << fractionBits) | fraction
    if (size[dtype] === 1) view.setUint8(i, bits)
    else view.setUint16(i * 2, bits, true)
    const part = fraction / 2 ** fractionBits
    const magnitude = exponent === 0 ? part * 2 ** (1 - bias) : (1 + part) * 2 ** (exponent - bias)
    return sign ? -magnitude : magnitude
  })
  return { bytes, values }
}

/** Nearest bf16, ties to even, by arithmetic on the number rather than on its bits. */
function nearestBf16(v: number): number {
  if (v === 0) return v
  const step = 2 ** (Math.max(-126, Math.floor(Math.log2(Math.abs(v)))) - 7)
  const q = Math.abs(v) / step
  let n = Math.floor(q)
  if (q - n > 0.5 || (q - n === 0.5 && n % 2 === 1)) n++
  return Math.sign(v) * n * step
}

type Unpack = (m: PackedMatrix, i: number, r: number, c: number) => number

const numberOf = (bits: number): number => new Float32Array(Uint32Array.of((bits << 16) >>> 0).buffer)[0]!

const unpackRows: Unpack = (m, i, r, c) => {
  const element = i * (m.strideBytes / (m.kind === 'f32' ? 4 : 2)) + r * m.k + c
  return m.kind === 'f32' ? f32View(m.span)[element]! : numberOf(u16View(m.span)[element]!)
}

const unpackPanels: Unpack = (m, i, r, c) => {
  const panel = Math.floor(r / 16)
  if (m.kind === 'f32') return f32View(m.span)[i * (m.strideBytes / 4) + (panel * m.k + c) * 16 + (r % 16)]!
  const pairs = Math.ceil(m.k / 2)
  const bits = u16View(m.span)[i * (m.strideBytes / 2) + ((panel * pairs + (c >> 1)) * 16 + (r % 16)) * 2 + (c & 1)]!
  return numberOf(bits)
}

export function packingSuite({ packer, packed = 'panels' }: Implementation): void {
  const unpack = packed === 'rows' ? unpackRows : unpackPanels
  const target = (kind: WeightKind, n: number, k: number, count: number): PackedMatrix => {
    const strideBytes = packer.packedBytes(kind, n, k)
    return { kind, n, k, count, strideBytes, span: lend(strideBytes * count) }
  }
  const dtypes: SourceDtype[] = ['F32', 'F16', 'BF16', 'F8_E4M3']
  const kinds: WeightKind[] = ['f32', 'bf16']
  const cases = dtypes.flatMap(d => kinds.map(k => [d, k] as const))

  describe.each(cases)('packing %s into %s', (dtype, kind) => {
    const round = (v: number): number => (kind === 'bf16' ? nearestBf16(v) : v)

    it.each([
      [1, 1],
      [16, 32],
      [17, 5],
      [80, 33],
      [40, 130],
    ])('%i × %i, straight', (n, k) => {
      const { bytes, values } = tensor(dtype, n * k, 1)
      const m = target(kind, n, k, 1)
      expect(m.strideBytes % 64).toBe(0)
      packer.packMatrix(m, 0, 0, n, { dtype, bytes, offset: 0, strideN: k, strideK: 1 })
      for (let r = 0; r < n; r++) for (let c = 0; c < k; c++) expect(unpack(m, 0, r, c)).toBe(round(values[r * k + c]!))
      if (packed === 'rows') return
      // Lanes of padding stay zero.
      const panels = Math.ceil(n / 16) * 16
      for (let r = n; r < panels; r++) for (let c = 0; c < k; c++) expect(unpack(m, 0, r, c)).toBe(0)
    })

    it('transposed, every other row, into the middle of the second matrix, from two pieces', () => {
      const [n, k, columns] = [21, 19, 60]
      const { bytes, values } = tensor(dtype, k * columns, 2)
      const m = target(kind, n + 9, k, 2)
      // Source [k, columns]: output row r is column 5 + 2r.
      const source: PackSource = { dtype, bytes, offset: 5, strideN: 2, strideK: columns }
      packer.packMatrix(m, 1, 3, 10, source)
      packer.packMatrix(m, 1, 13, n - 10, { ...source, offset: 5 + 2 * 10 })
      for (let r = 0; r < n + 9; r++)
        for (let c = 0; c < k; c++) {
          const inside = r >= 3 && r < n + 3
          expect(unpack(m, 1, r, c)).toBe(inside ? round(values[c * columns + 5 + 2 * (r - 3)]!) : 0)
          expect(unpack(m, 0, r, c)).toBe(0)
        }
    })
  })

  describe('packing F8 with block scales', () => {
    it.each([
      [false, 'f32'],
      [true, 'f32'],
      [false, 'bf16'],
      [true, 'bf16'],
    ] as const)('transposed %s, into %s', (transposed, kind) => {
      const [rows, columns, blockRows, blockCols] = [37, 29, 16, 8]
      const { bytes, values } = tensor('F8_E4M3', rows * columns, 3)
      const scaleColumns = Math.ceil(columns / blockCols)
      const scales = Float32Array.from({ length: Math.ceil(rows / blockRows) * scaleColumns }, noise(4))
      const [n, k] = transposed ? [columns, rows] : [rows, columns]
      const m = target(kind, n, k, 1)
      packer.packMatrix(m, 0, 0, n, {
        dtype: 'F8_E4M3',
        bytes,
        offset: 0,
        strideN: transposed ? 1 : columns,
        strideK: transposed ? columns : 1,
        scales: { values: scales, blockRows, blockCols, columns: scaleColumns, sourceColumns: columns },
      })
      for (let r = 0; r < rows; r++)
        for (let c = 0; c < columns; c++) {
          const scale = scales[Math.floor(r / blockRows) * scaleColumns + Math.floor(c / blockCols)]!
          const want = Math.fround(values[r * columns + c]! * scale)
          const got = transposed ? unpack(m, 0, c, r) : unpack(m, 0, r, c)
          expect(got).toBe(kind === 'bf16' ? nearestBf16(want) : want)
        }
    })
  })

  it('keeps NaN and infinities', () => {
    const values = Float32Array.of(Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY, -0, 3.4e38)
    for (const kind of kinds) {
      const m = target(kind, 1, 5, 1)
      packer.packMatrix(m, 0, 0, 1, {
        dtype: 'F32',
        bytes: new Uint8Array(values.buffer),
        offset: 0,
        strideN: 5,
        strideK: 1,
      })
      const got = [0, 1, 2, 3, 4].map(c => unpack(m, 0, 0, c))
      expect(got[0]).toBeNaN()
      expect(got.slice(1, 4)).toEqual([Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY, -0])
      expect(got[4]).toBe(kind === 'bf16' ? Number.POSITIVE_INFINITY : Math.fround(3.4e38))
    }
  })

  it.each(dtypes)('packVector reads %s with a stride', dtype => {
    const { bytes, values } = tensor(dtype, 40, 5)
    const span = lend(64)
    packer.packVector({ span, length: 16 }, 4, 9, { dtype, bytes, offset: 2, strideN: 3, strideK: 0 })
    const got = Array.from(f32View(span))
    expect(got).toEqual(Array.from({ length: 16 }, (_, i) => (i >= 4 && i < 13 ? values[2 + 3 * (i - 4)]! : 0)))
  })

  it('refuses sources, rows and scales that reach beyond their ends', () => {
    const { bytes } = tensor('F8_E4M3', 16 * 16, 6)
    const m = target('f32', 16, 16, 1)
    const good: PackSource = { dtype: 'F8_E4M3', bytes, offset: 0, strideN: 16, strideK: 1 }
    expect(() => packer.packMatrix(m, 0, 0, 16, { ...good, offset: 1 })).toThrow(/beyond/)
    expect(() => packer.packMatrix(m, 0, 1, 16, good)).toThrow(/outside/)
    expect(() => packer.packMatrix(m, 1, 0, 16, good)).toThrow(/outside/)
    const scales = { values: new Float32Array(3), blockRows: 8, blockCols: 8, columns: 2, sourceColumns: 16 }
    expect(() => packer.packMatrix(m, 0, 0, 16, { ...good, scales })).toThrow(/scales/)
  })
}
