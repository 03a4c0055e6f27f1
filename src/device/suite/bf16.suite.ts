// Operations of devices that hold activations in bf16: against float64 on the very numbers that the operands hold. Bounds are
// derived: rounding a result to 8 significant bits moves it by 2^-8 of itself at most, and a sum in f32 of k products is off by at
// most k · 2^-24 of the sum of their magnitudes. Where an operation rounds in between (experts), each rounded number passes
// 2^-8 of its own magnitude on.
import { describe, expect, it } from 'vitest'
import { roundToBf16 } from '../cpu/number-formats.js'
import { u16View } from '../memory.js'
import type { Operand, Ops, Packer } from '../ops.js'
import {
  at,
  fillInts,
  lend,
  matrixOf,
  noise,
  random,
  randomRows,
  rowsOf,
  spanOf,
  type TestRows,
  vectorOf,
} from './bench.suite.js'

const UNTOUCHED = 0x7149
const ROUNDING = 2 ** -8
const ADDING = 2 ** -24

/** bf16 rows with guards around them. */
export interface HalfRows extends Operand {
  readonly dtype: 'bf16'
  readonly bits: Uint16Array
  readonly rows: number
  readonly width: number
}

/** Where rows lie: as wide accesses like it, or in a way that allows only single elements. */
const PLACES = [
  ['aligned', 8, 8],
  ['at odd places', 3, 5],
] as const

export function halfRows(rows: number, width: number, offset = 8, gap = 8): HalfRows {
  const stride = width + gap
  const span = lend((offset + rows * stride + 16) * 2)
  const bits = u16View(span)
  bits.fill(UNTOUCHED)
  return { span, dtype: 'bf16', offset, stride, bits, rows, width }
}

const place = (o: HalfRows, r: number, c = 0): number => o.offset + r * o.stride + c
const number = new Float32Array(1)
const upper = new Uint16Array(number.buffer)
export function get(o: HalfRows, r: number, c: number): number {
  upper[1] = o.bits[place(o, r, c)]!
  return number[0]!
}
export const set = (o: HalfRows, r: number, c: number, value: number): void => {
  o.bits[place(o, r, c)] = roundToBf16(value)
}

export function randomHalf(seed: number, rows: number, width: number, offset = 8, gap = 8, scale = 1): HalfRows {
  const o = halfRows(rows, width, offset, gap)
  const value = noise(seed)
  for (let r = 0; r < rows; r++) for (let c = 0; c < width; c++) set(o, r, c, value() * scale)
  return o
}

const numbersOf = (o: HalfRows): number[][] =>
  Array.from({ length: o.rows }, (_, r) => Array.from({ length: o.width }, (_x, c) => get(o, r, c)))

/** @param slack absolute error allowed beside the rounding of the result */
export function expectNear(
  o: HalfRows,
  want: (r: number, c: number) => number,
  slack: (r: number, c: number) => number = () => 0,
): void {
  for (let r = 0; r < o.rows; r++)
    for (let c = 0; c < o.width; c++) {
      const [got, wanted] = [get(o, r, c), want(r, c)]
      if (!(Math.abs(got - wanted) <= ROUNDING * Math.abs(wanted) + slack(r, c) + 1e-38))
        expect.fail(`row ${r}, column ${c}: ${got}, expected ${wanted} within ${slack(r, c)} and rounding`)
    }
  for (let i = 0; i < o.bits.length; i++) {
    const [r, c] = [Math.floor((i - o.offset) / o.stride), (i - o.offset) % o.stride]
    if ((i < o.offset || r >= o.rows || c >= o.width) && o.bits[i] !== UNTOUCHED)
      expect.fail(`element ${i}, outside the operand's rows, was written`)
  }
}

const sigmoid = (x: number): number => 1 / (1 + Math.exp(-x))

export function bf16Suite({ ops, packer }: { readonly ops: Ops; readonly packer: Packer }): void {
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

  it.each([
    [8, 2, 64, 64, false],
    [4, 4, 128, 128, false],
    [6, 1, 40, 32, true],
    [16, 1, 576, 512, true],
  ])('attention, %i heads, %i KV heads, widths %i and %i, latent %s', (heads, kvHeads, qkWidth, vWidth, latent) => {
    const pageSize = 16
    const lengths = [75, 1, 33]
    const valueOffset = latent ? 0 : kvHeads * qkWidth
    const width = latent ? qkWidth : valueOffset + kvHeads * vWidth
    const pages = lengths.map(l => Math.ceil(l / pageSize))
    const total = pages.reduce((a, b) => a + b, 0)
    const kv = randomHalf(1, total * pageSize, width)
    const table = fillInts(rowsOf(lengths.length, Math.max(...pages)), () => -7)
    let next = total
    pages.forEach((count, s) => {
      for (let p = 0; p < count; p++) table.i[at(table, s, p)] = --next
    })
    const rows = [[0, 74], [1, 0], ...Array.from({ length: 33 }, (_, p) => [2, p]), [0, 15], [-1, 3]] as [
      number,
      number,
    ][]
    const q = randomHalf(2, rows.length, heads * qkWidth, 8, 8, 3)
    const out = halfRows(rows.length, heads * vWidth)
    const scale = 1 / Math.sqrt(qkWidth)
    const batch = {
      rowSequence: fillInts(rowsOf(rows.length, 1), r => rows[r]![0]),
      positions: fillInts(rowsOf(rows.length, 1), r => rows[r]![1]),
      pageTable: table as TestRows,
      pageSize,
    }
    const sizes = { heads, kvHeads, qkWidth, vWidth, keyOffset: 0, valueOffset, scale }
    ops.attention({ out, q, kv, batch, ...sizes })(rows.length)
    const oracle = rows.map(([s, position], r) => {
      if (s < 0) return new Float64Array(2 * heads * vWidth)
      const slots = Array.from({ length: position + 1 }, (_, p) => {
        const page = table.i[at(table, s, Math.floor(p / pageSize))]!
        return page * pageSize + (p % pageSize)
      })
      const result = new Float64Array(2 * heads * vWidth)
      for (let h = 0; h < heads; h++) {
        const kvHead = Math.floor((h * kvHeads) / heads)
        const scores = slots.map(slot => {
          let dot = 0
          for (let c = 0; c < qkWidth; c++) dot += get(q, r, h * qkWidth + c) * get(kv, slot, kvHead * qkWidth + c)
          return dot * scale
        })
        const most = Math.max(...scores)
        const sum = scores.reduce((t, x) => t + Math.exp(x - most), 0)
        for (let c = 0; c < vWidth; c++)
          scores.forEach((x, i) => {
            const part = (Math.exp(x - most) / sum) * get(kv, slots[i]!, valueOffset + kvHead * vWidth + c)
            result[2 * (h * vWidth + c)]! += part
            result[2 * (h * vWidth + c) + 1]! += Math.abs(part)
          })
      }
      return result
    })
    // Scores are off by at most qkWidth · 2^-24 · Σ|q||k| · scale, and weights may be rounded to bf16 before they meet the values.
    const error = 2 * ROUNDING + 2 * qkWidth * ADDING * qkWidth * 3 * scale
    expectNear(
      out,
      (r, c) => oracle[r]![2 * c]!,
      (r, c) => error * oracle[r]![2 * c + 1]!,
    )
  })
}

/** Positions of three rows and a table for 20. */
export function rotations(width: number) {
  const half = width / 2
  const table = new Float32Array(20 * width)
  for (let p = 0; p < 20; p++)
    for (let i = 0; i < half; i++) {
      table[p * width + i] = Math.cos(p / 1.3 ** i)
      table[p * width + half + i] = Math.sin(p / 1.3 ** i)
    }
  const list = [0, 19, 7]
  return { table, list, positions: fillInts(rowsOf(3, 1), r => list[r]!) }
}

/** Column c of a head after its rotation. */
export function rotate(
  head: readonly number[],
  table: Float32Array,
  position: number,
  c: number,
  interleaved: boolean,
): number {
  const width = head.length
  const half = width / 2
  const i = c % half
  const [u, v] = [head[interleaved ? 2 * i : i]!, head[interleaved ? 2 * i + 1 : half + i]!]
  const [cosine, sine] = [table[position * width + i]!, table[position * width + half + i]!]
  return c < half ? u * cosine - v * sine : v * cosine + u * sine
}
