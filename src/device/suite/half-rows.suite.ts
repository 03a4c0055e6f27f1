// What suites of bf16 operations share: rows in bf16 with guards around them, comparison within derived bounds, and rotations.
import { expect } from 'vitest'
import { roundToBf16 } from '../cpu/number-formats.js'
import { u16View } from '../memory.js'
import type { Operand } from '../ops.js'
import { fillInts, lend, noise, rowsOf } from './bench.suite.js'

export const UNTOUCHED = 0x7149
/** Rounding to 8 significant bits moves a number by this share of itself at most. */
export const ROUNDING = 2 ** -8
/** The same of an addition in f32. */
export const ADDING = 2 ** -24

/** Where rows lie: as wide accesses like it, or in a way that allows only single elements. */
export const PLACES = [
  ['aligned', 8, 8],
  ['at odd places', 3, 5],
] as const

/** bf16 rows with guards around them. */
export interface HalfRows extends Operand {
  readonly dtype: 'bf16'
  readonly bits: Uint16Array
  readonly rows: number
  readonly width: number
}

export function halfRows(rows: number, width: number, offset = 8, gap = 8): HalfRows {
  const stride = width + gap
  const span = lend((offset + rows * stride + 16) * 2)
  const bits = u16View(span)
  bits.fill(UNTOUCHED)
  return { span, dtype: 'bf16', offset, stride, bits, rows, width }
}

export const place = (o: HalfRows, r: number, c = 0): number => o.offset + r * o.stride + c
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

export const numbersOf = (o: HalfRows): number[][] =>
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
