// What the operations' suites share: memory with seeded numbers, packed weights with their float64 originals, and
// comparisons. Guard values around operands show writes that go astray.
import { expect } from 'vitest'
import { CounterRandom, STREAM } from '../../runtime/random.js'
import { f32View, HostMemoryLender, i32View, type MemoryLender, type MemorySpan } from '../memory.js'
import type { Operand, Ops, PackedMatrix, Packer, ParameterVector, WeightKind } from '../ops.js'

/** What a suite runs against. */
export interface Implementation {
  readonly ops: Ops
  readonly packer: Packer
  /** Where kernels reach no other memory than their own device's: what lends it. All implementations of a file share it. */
  readonly lender?: MemoryLender
  /** How the packer lays matrices out, as PackedMatrix says; left out: in panels of 16 rows. */
  readonly packed?: 'panels' | 'rows'
  /** Optional operations that this device has no use for. */
  readonly leavesOut?: readonly 'sumAddRmsNorm'[]
}

export const GUARD = 1.25e30

let memory: MemoryLender = new HostMemoryLender()

/** The memory of everything the suites make from now on. */
export function useMemory(lender: MemoryLender): void {
  memory = lender
}

export const lend = (bytes: number): MemorySpan => memory.lend(bytes, 'test')

/** An operand with guards before, after and between its rows, and a view of it. */
export interface TestRows extends Operand {
  readonly f: Float32Array
  readonly i: Int32Array
  readonly rows: number
  readonly width: number
}

export function rowsOf(rows: number, width: number, offset = 3, gap = 5): TestRows {
  const stride = width + gap
  const span = memory.lend((offset + rows * stride + 16) * 4, 'test')
  const f = f32View(span)
  f.fill(GUARD)
  return { span, offset, stride, f, i: i32View(span), rows, width }
}

/** The operand that starts at row `first` of `o`. */
export const from = (o: Operand, first: number): Operand => ({
  span: o.span,
  offset: o.offset + first * o.stride,
  stride: o.stride,
})

export const at = (o: TestRows, r: number, c = 0): number => o.offset + r * o.stride + c

export function fill(o: TestRows, value: (r: number, c: number) => number): TestRows {
  for (let r = 0; r < o.rows; r++) for (let c = 0; c < o.width; c++) o.f[at(o, r, c)] = value(r, c)
  return o
}

export function fillInts(o: TestRows, value: (r: number, c: number) => number): TestRows {
  for (let r = 0; r < o.rows; r++) for (let c = 0; c < o.width; c++) o.i[at(o, r, c)] = value(r, c)
  return o
}

export const random = (seed: number): CounterRandom => new CounterRandom(seed, STREAM.benchmark)

/** Numbers in (-1, 1). */
export const noise = (seed: number): (() => number) => {
  const r = random(seed)
  return () => Math.fround(r.unit() * 2 - 1)
}

/** In float64, for oracles. */
export const sigmoid = (x: number): number => 1 / (1 + Math.exp(-x))

export const randomRows = (seed: number, rows: number, width: number, offset = 3, gap = 5): TestRows =>
  fill(rowsOf(rows, width, offset, gap), noise(seed))

export function vectorOf(values: readonly number[]): ParameterVector & { readonly f: Float32Array } {
  const span = memory.lend(values.length * 4, 'test')
  f32View(span).set(values)
  return { span, length: values.length, f: f32View(span) }
}

/** A packed matrix with random numbers, and the numbers themselves as the packed kind holds them: w(i, n, k). */
export interface TestMatrix extends PackedMatrix {
  w(index: number, row: number, column: number): number
}

export function matrixOf(p: Packer, seed: number, kind: WeightKind, n: number, k: number, count = 1): TestMatrix {
  const next = noise(seed)
  const values = Float32Array.from({ length: count * n * k }, next)
  // Numbers that bf16 holds exactly, so that the oracle needs no rounding of its own.
  if (kind === 'bf16') {
    const bits = new Uint32Array(values.buffer)
    for (let i = 0; i < bits.length; i++) bits[i]! &= 0xffff0000
  }
  const strideBytes = p.packedBytes(kind, n, k) + 64
  const span = memory.lend(count * strideBytes, 'test')
  const m: PackedMatrix = { kind, n, k, count, strideBytes, span }
  const bytes = new Uint8Array(values.buffer)
  for (let i = 0; i < count; i++)
    p.packMatrix(m, i, 0, n, { dtype: 'F32', bytes, offset: i * n * k, strideN: k, strideK: 1 })
  return { ...m, w: (i, r, c) => values[(i * n + r) * k + c]! }
}

export const spanOf = (values: Float32Array): MemorySpan => {
  const span = memory.lend(values.byteLength, 'test')
  f32View(span).set(values)
  return span
}

/** Every number of `o` equals the oracle's within `tolerance` (absolute plus relative); guards are untouched. */
export function expectClose(
  o: TestRows,
  oracle: (r: number, c: number) => number,
  tolerance = 2e-6,
  rows = o.rows,
): void {
  for (let r = 0; r < rows; r++)
    for (let c = 0; c < o.width; c++) {
      const got = o.f[at(o, r, c)]!
      const want = oracle(r, c)
      if (!(Math.abs(got - want) <= tolerance * (1 + Math.abs(want))))
        expect.fail(`row ${r}, column ${c}: ${got}, expected ${want}`)
    }
  expectGuards(o, rows)
}

/** Nothing outside the first `rows` rows was written. */
export function expectGuards(o: TestRows, rows = o.rows): void {
  const guard = Math.fround(GUARD)
  for (let i = 0; i < o.f.length; i++) {
    const r = Math.floor((i - o.offset) / o.stride)
    const inside = i >= o.offset && r < rows && (i - o.offset) % o.stride < o.width
    if (!inside && r >= rows && r < o.rows && (i - o.offset) % o.stride < o.width) continue
    if (!inside && o.f[i] !== guard) expect.fail(`element ${i}, outside the operand's rows, was written`)
  }
}

/** The bits of row r. */
export const bitsOf = (o: TestRows, r: number): number[] => Array.from(o.i.subarray(at(o, r), at(o, r) + o.width))

/** Rows [0, rows) of `a` and `b` are the same bit for bit. */
export function expectSameBits(a: TestRows, b: TestRows, rows = a.rows): void {
  for (let r = 0; r < rows; r++)
    for (let c = 0; c < a.width; c++) {
      const [x, y] = [a.i[at(a, r, c)]!, b.i[at(b, r, c)]!]
      if (x !== y) expect.fail(`row ${r}, column ${c}: bits ${x}, expected ${y}`)
    }
}
