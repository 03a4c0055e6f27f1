// Products by cuBLASLt against sums in float64 of the same (rounded) operands.
//
// Bound: a sum of k products of f32 numbers, added in any order in f32, is off by at most (k + 1) · 2^-24 · Σ|x·w| (Higham,
// Accuracy and Stability, section 3.1); products of bf16 numbers are exact in f32. Rounding the result to bf16 adds 2^-8 of it.
import { describe, expect, test } from 'vitest'
import { CounterRandom, STREAM } from '../../src/runtime/random.js'
import { fromBf16, toBf16 } from '../number-encoding.js'
import { openGpu } from './gpu.js'

const gpu = openGpu()
const { kernels } = gpu
const { stream } = kernels

type Dtype = 'f32' | 'bf16'
interface Case {
  readonly inputs: Dtype
  readonly output: Dtype
  readonly rows: readonly number[]
  readonly n: number
  readonly k: number
  /** Elements added to each stride. */
  readonly gap: number
  readonly accumulate: boolean
}

const random = new CounterRandom(7, STREAM.benchmark)
const draw = (length: number): Float32Array => Float32Array.from({ length }, () => random.unit() * 2 - 1)
const bytesOf = (dtype: Dtype, values: Float32Array): Uint16Array | Float32Array =>
  dtype === 'bf16' ? Uint16Array.from(values, toBf16) : values
const read = (dtype: Dtype, bytes: Uint16Array | Float32Array): Float32Array =>
  dtype === 'bf16' ? Float32Array.from(bytes, fromBf16) : (bytes as Float32Array)

function check({ inputs, output, rows, n, k, gap, accumulate }: Case, run = (queue: () => void) => queue()): void {
  const most = Math.max(...rows)
  const [xStride, wStride, outStride] = [k + gap, k + gap, n + gap]
  const xBytes = bytesOf(inputs, draw(most * xStride))
  const wBytes = bytesOf(inputs, draw(n * wStride))
  const before = bytesOf(output, draw(most * outStride))
  const [x, w, old] = [read(inputs, xBytes), read(inputs, wBytes), read(output, before)]
  const outAddress = gpu.at(before)
  const product = kernels.blas.bind({
    n,
    k,
    x: { address: gpu.at(xBytes), dtype: inputs, stride: xStride },
    weight: { address: gpu.at(wBytes), dtype: inputs, stride: wStride },
    out: { address: outAddress, dtype: output, stride: outStride },
    accumulate,
  })
  for (const m of rows) {
    stream.synchronize()
    gpu.context.upload(outAddress, before)
    run(() => product(m))
    const got = read(
      output,
      gpu.read(output === 'bf16' ? new Uint16Array(before.length) : new Float32Array(before.length), outAddress),
    )
    for (let r = 0; r < most; r++) {
      for (let c = 0; c < outStride; c++) {
        const at = r * outStride + c
        if (r >= m || c >= n) {
          if (got[at] !== old[at]) expect.fail(`row ${r}, column ${c} lies outside [${m}, ${n}] and was written`)
          continue
        }
        let sum = accumulate ? old[at]! : 0
        let size = Math.abs(sum)
        for (let i = 0; i < k; i++) {
          const term = x[r * xStride + i]! * w[c * wStride + i]!
          sum += term
          size += Math.abs(term)
        }
        // The library may round its product to bf16 before it adds: two roundings of 2^-8.
        const product = sum - (accumulate ? old[at]! : 0)
        const rounded = accumulate ? Math.abs(product) + Math.abs(sum) : Math.abs(sum)
        const bound = (k + 2) * 2 ** -24 * size + (output === 'bf16' ? 2 ** -8 * rounded : 0)
        if (!(Math.abs(got[at]! - sum) <= bound))
          expect.fail(`rows ${m}, [${r}, ${c}]: ${got[at]} instead of ${sum}, bound ${bound}`)
      }
    }
  }
}

describe.each<[Dtype, Dtype]>([
  ['bf16', 'bf16'],
  ['bf16', 'f32'],
  ['f32', 'f32'],
])('%s to %s', (inputs, output) => {
  test('row counts around the buckets', () =>
    check({ inputs, output, rows: [1, 2, 7, 16, 17, 33, 100, 130], n: 96, k: 160, gap: 0, accumulate: false }))

  test('rows with gaps between them', () =>
    check({ inputs, output, rows: [5, 64], n: 72, k: 136, gap: 24, accumulate: false }))

  test('odd sizes, which allow no vector loads', () =>
    check({ inputs, output, rows: [3, 19], n: 37, k: 51, gap: 1, accumulate: false }))

  test('adds to what is there', () =>
    check({ inputs, output, rows: [1, 40], n: 128, k: 256, gap: 8, accumulate: true }))

  test('in a graph', () =>
    check({ inputs, output, rows: [9, 31], n: 64, k: 128, gap: 0, accumulate: false }, queue => {
      using graph = stream.capture(queue)
      expect(graph.nodes).toBeGreaterThan(0)
      graph.launch()
      stream.synchronize()
    }))
})

test('f32 products keep f32, not TF32', () => {
  // 1 + 2^-12 is no TF32 number: a product in TF32 would lose the small part.
  const x = new Float32Array(8).fill(1 + 2 ** -12)
  const w = new Float32Array(8).fill(1)
  const out = gpu.zeros(4 * 8)
  kernels.blas.bind({
    n: 1,
    k: 8,
    x: { address: gpu.at(x), dtype: 'f32', stride: 8 },
    weight: { address: gpu.at(w), dtype: 'f32', stride: 8 },
    out: { address: out, dtype: 'f32', stride: 8 },
  })(1)
  expect(gpu.read(new Float32Array(1), out)[0]).toBe(8 + 8 * 2 ** -12)
})

test('no rows, no work', () => {
  const product = kernels.blas.bind({
    n: 8,
    k: 8,
    x: { address: 0, dtype: 'f32', stride: 8 },
    weight: { address: 0, dtype: 'f32', stride: 8 },
    out: { address: 0, dtype: 'f32', stride: 8 },
  })
  product(0)
  stream.synchronize()
})
