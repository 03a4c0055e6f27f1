// Attention on the GPU against a float64 oracle on the same bf16 numbers.
//
// Bound of |out - exact| for a row that sees n positions of keys of width w, with p the exact probabilities:
// - rounding the result to bf16: 2^-9 |exact|;
// - probabilities rounded to bf16 before they meet the values: 2^-9 Σ p|v|;
// - scores summed in f32: each is off by at most w 2^-24 Σ|q||k| scale, which is a relative error of p;
// - exponentials (2 units in the last place) and sums over n in f32: n 2^-24 Σ p|v| and smaller.
// Asserted: 2^-8 |exact| + (2^-8 + 2^-21 (n + 2 w max Σ|q||k| scale)) Σ p|v|. The first two are doubled; a wrong key, head or mask is
// orders of magnitude above.
// In f32 nothing is rounded to bf16, and a score is a chain of at most 40 additions (attention_any_lanes.cu), scaled, which both a weight and
// their total take over: 2^-23 |exact| + (2^-23 + 2^-24 (n + 84 max Σ|q||k| scale + 16)) Σ p|v|.
import { afterAll, beforeAll, expect, it } from 'vitest'
import { type AttentionSpec, type FastAttentionOptions, fastAttention } from '../../src/device/cuda/ops/attention.js'
import { attentionStep } from '../../src/device/cuda/ops/attention-step.js'
import { faultAddress } from '../../src/device/cuda/ops/faults.js'
import { type ActivationDtype, elementBytes, type Operand } from '../../src/device/ops.js'
import { bf16Value, Gpu, type Rows, UNTOUCHED } from './gemm.suite.js'

export interface AttentionCase {
  readonly name: string
  readonly heads: number
  readonly kvHeads: number
  readonly qkWidth: number
  /** Less than qkWidth: latent, the value inside the key, unless `apart` says that it has a place of its own. */
  readonly vWidth: number
  readonly apart?: boolean
  /** bf16 where left out. */
  readonly type?: ActivationDtype
  /** Elements before keys and values in their rows, and between rows: 8, as wide accesses like it, where left out. */
  readonly pad?: number
  readonly pageSize: number
  readonly rows: readonly (readonly [sequence: number, position: number])[]
  readonly window?: number
  readonly sinks?: boolean
  /** The engine says that every sequence brings one row. */
  readonly decodeOnly?: boolean
  readonly options?: FastAttentionOptions
}

/** `count` consecutive rows of a sequence. */
export const run = (sequence: number, from: number, count: number): [number, number][] =>
  Array.from({ length: count }, (_, i) => [sequence, from + i])

const PAD = 8

/** Random rows of a type, and the numbers they hold. */
function rowsOf(gpu: Gpu, type: ActivationDtype, seed: number, rows: number, width: number, stride = width): Rows {
  const half = gpu.bf16(seed, rows, width, stride)
  if (type === 'bf16') return half
  const values = half.values.map(v => Math.fround(v * 0.9871))
  const span = gpu.put(values)
  return { span, address: gpu.address(span), stride, values }
}

export class Setting {
  readonly spec: AttentionSpec
  readonly #case: AttentionCase
  readonly #gpu: Gpu
  readonly #q
  readonly #kv
  readonly #table: readonly number[]
  readonly #pages: number
  readonly #out: Operand
  readonly #sinks: Float32Array | undefined

  constructor(gpu: Gpu, c: AttentionCase) {
    this.#case = c
    this.#gpu = gpu
    const latent = c.vWidth < c.qkWidth && !c.apart
    const pad = c.pad ?? PAD
    const type = c.type ?? 'bf16'
    const sequences = Math.max(...c.rows.map(r => r[0])) + 1
    this.#pages = Math.ceil((Math.max(...c.rows.map(r => r[1])) + 1) / c.pageSize)
    const pages = sequences * this.#pages
    // Every page once, scattered: 7919 is a prime above any number of pages here.
    this.#table = Array.from({ length: pages }, (_, i) => (i * 7919 + 3) % pages)
    const keyOffset = pad
    const valueOffset = latent ? keyOffset : keyOffset + c.kvHeads * c.qkWidth + pad
    const width = valueOffset + c.kvHeads * (latent ? c.qkWidth : c.vWidth) + pad
    this.#kv = rowsOf(gpu, type, 11, pages * c.pageSize, width)
    this.#q = rowsOf(gpu, type, 12, c.rows.length, c.heads * c.qkWidth, c.heads * c.qkWidth + 2 * pad)
    const stride = c.heads * c.vWidth + pad
    const halves = type === 'bf16' ? 1 : 2
    this.#out = { span: gpu.untouched(c.rows.length * stride * halves), dtype: type, offset: 0, stride }
    this.#sinks = c.sinks ? Float32Array.from({ length: c.heads }, (_, h) => Math.sin(h) * 2) : undefined
    const ints = (values: readonly number[], each: number): Operand => ({
      span: gpu.put(Int32Array.from(values)),
      offset: 0,
      stride: each,
    })
    this.spec = {
      out: this.#out,
      q: { span: this.#q.span, dtype: type, offset: 0, stride: this.#q.stride },
      kv: { span: this.#kv.span, dtype: type, offset: 0, stride: width },
      batch: {
        rowSequence: ints(
          c.rows.map(r => r[0]),
          1,
        ),
        positions: ints(
          c.rows.map(r => r[1]),
          1,
        ),
        pageTable: ints(this.#table, this.#pages),
        pageSize: c.pageSize,
      },
      heads: c.heads,
      kvHeads: c.kvHeads,
      qkWidth: c.qkWidth,
      vWidth: c.vWidth,
      keyOffset,
      valueOffset,
      // Larger than 1 / sqrt(width): the probabilities are far from even.
      scale: 2 / Math.sqrt(c.qkWidth),
      ...(c.window === undefined ? {} : { window: c.window }),
      ...(this.#sinks ? { sinks: { length: c.heads, span: gpu.put(this.#sinks) } } : {}),
    }
  }

  /** Bytes of all results, with what lies between rows. */
  get resultBytes(): number {
    return this.#case.rows.length * this.#out.stride * elementBytes(this.#out.dtype)
  }

  /** The bits of all results, as words of 16. */
  read(): Uint16Array {
    return this.#gpu.read(new Uint16Array(this.resultBytes / 2), this.#gpu.address(this.#out.span))
  }

  /** Throws at the first element outside the bound. Of many rows and heads, every so-manieth is looked at. */
  compare(bits: Uint16Array): void {
    const { rows, heads, vWidth } = this.#case
    const half = this.#out.dtype === 'bf16'
    // What nobody wrote is NaN as a number, too.
    const words = half ? bits : new Uint32Array(bits.buffer)
    const untouched = half ? UNTOUCHED : 0xffffffff
    const numbers = half ? Float32Array.from(bits, bf16Value) : new Float32Array(bits.buffer)
    const everyRow = Math.ceil(rows.length / 120)
    const everyHead = Math.ceil(heads / 24)
    for (let r = 0; r < rows.length; r++) {
      const at = r * this.#out.stride
      for (let c = heads * vWidth; c < this.#out.stride; c++) expect(words[at + c]).toBe(untouched)
      if (r > 8 && r < rows.length - 8 && r % everyRow !== 0) continue
      for (let h = r % everyHead; h < heads; h += everyHead)
        this.#compareHead(r, h, numbers.subarray(at + h * vWidth, at + (h + 1) * vWidth))
    }
  }

  #compareHead(r: number, h: number, got: Float32Array): void {
    const { rows, kvHeads, heads, qkWidth, vWidth, pageSize, window } = this.#case
    const { keyOffset, valueOffset, scale } = this.spec
    const [sequence, position] = rows[r]!
    if (sequence < 0 || position < 0) {
      expect([...got], `row ${r}: padding`).toEqual(new Array(vWidth).fill(0))
      return
    }
    const kvHead = Math.floor((h * kvHeads) / heads)
    const start = window === undefined ? 0 : Math.max(0, position - window + 1)
    const n = position + 1 - start
    const slots = Array.from({ length: n }, (_, i) => {
      const p = start + i
      const page = this.#table[sequence * this.#pages + Math.floor(p / pageSize)]!
      return (page * pageSize + (p % pageSize)) * this.#kv.stride
    })
    const query = r * this.#q.stride + h * qkWidth
    let largest = 0
    const scores = slots.map(slot => {
      let [sum, size] = [0, 0]
      for (let c = 0; c < qkWidth; c++) {
        const x = this.#q.values[query + c]! * this.#kv.values[slot + keyOffset + kvHead * qkWidth + c]!
        sum += x
        size += Math.abs(x)
      }
      largest = Math.max(largest, size * scale)
      return sum * scale
    })
    const sink = this.#sinks?.[h]
    const top = Math.max(...scores, sink ?? Number.NEGATIVE_INFINITY)
    const total = scores.reduce((s, x) => s + Math.exp(x - top), sink === undefined ? 0 : Math.exp(sink - top))
    const weights = scores.map(x => Math.exp(x - top) / total)
    const half = this.#out.dtype === 'bf16'
    const rounding = half ? 2 ** -8 : 2 ** -23
    const summing = half ? 2 ** -21 * (n + 2 * qkWidth * largest) : 2 ** -24 * (n + 84 * largest + 16)
    const relative = rounding + summing
    const value = valueOffset + kvHead * vWidth
    for (let c = 0; c < vWidth; c++) {
      let [want, size] = [0, 0]
      for (let i = 0; i < n; i++) {
        const x = weights[i]! * this.#kv.values[slots[i]! + value + c]!
        want += x
        size += Math.abs(x)
      }
      const bound = rounding * Math.abs(want) + relative * size
      const found = got[c]!
      if (!(Math.abs(found - want) <= bound))
        expect.fail(`row ${r} (position ${position}), head ${h}, column ${c}: ${found}, exact ${want}, bound ${bound}`)
    }
  }
}

/** One test a case. */
export function attentionCases(cases: readonly AttentionCase[]): void {
  let gpu: Gpu
  beforeAll(() => {
    gpu = new Gpu()
  })
  afterAll(() => gpu[Symbol.dispose]())

  it.each(cases.map(c => [c.name, c] as const))('%s', (_, c) => {
    const setting = new Setting(gpu, c)
    const step = attentionStep(gpu.kernels)
    step.decodeOnly = c.decodeOnly ?? false
    const kernel = fastAttention(gpu.kernels, setting.spec, c.options)
    expect(kernel).toBeDefined()
    kernel!(c.rows.length)
    const first = setting.read()
    setting.compare(first)
    // Again: counters are back at zero, and neither timing nor what an earlier launch left changes a bit.
    kernel!(c.rows.length)
    expect(setting.read()).toEqual(first)
    expect([...gpu.read(new Float32Array(2), faultAddress(gpu.kernels))]).toEqual([0, 0])
  })
}
