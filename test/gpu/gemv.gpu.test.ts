// Products of a few rows against float64 sums: every number of rows, tails of rows and columns, heads, and bits that do not depend on company.
// The routed experts by these kernels: experts-fast.gpu.test.ts.
import { describe, expect, it } from 'vitest'
import { bindGemv } from '../../src/device/cuda/ops/gemv.js'
import { fastHeadLinear } from '../../src/device/cuda/ops/linear-fast.js'
import { bf16Value, dot, expectWithin, openGpu, storeBound, sumBound, UNTOUCHED } from './gemm.suite.js'

const gpu = openGpu()

describe('rows of one matrix and of heads', () => {
  it.each([
    [1, 16, 64, 1],
    [1, 5120, 2048, 1],
    [2, 2048, 4096, 1],
    [3, 129, 1096, 1],
    [4, 128, 2048, 1],
    [9, 40, 7168, 1],
    [4, 512, 128, 16],
    [2, 37, 72, 3],
  ])('%i rows, %i outputs, %i inputs, %i heads', (rows, n, k, heads) => {
    const x = gpu.bf16(1, rows, heads * k, heads * k + 8)
    const weight = gpu.matrix(2, n, k, heads)
    const stride = heads * n + 8
    const bias = Array.from({ length: n }, (_, i) => Math.fround(Math.sin(i) * 3))
    const before = Array.from({ length: rows * stride }, (_, i) => Math.fround(Math.cos(i)))
    const plain = gpu.address(gpu.untouched(rows * stride))
    const added = gpu.at(Float32Array.from(before))
    const spec = { x: { address: x.address, stride: x.stride, headStride: k }, weight }
    const out = (address: number, dtype: 'bf16' | 'f32') => ({ address, stride, headStride: n, dtype })
    bindGemv(gpu.kernels, { ...spec, out: out(plain, 'bf16') })(rows)
    const biasAt = gpu.at(Float32Array.from(bias))
    bindGemv(gpu.kernels, { ...spec, out: out(added, 'f32'), bias: biasAt, accumulate: true })(rows)
    const a = gpu.read(new Uint16Array(rows * stride), plain)
    const b = gpu.read(new Float32Array(rows * stride), added)
    for (let r = 0; r < rows; r++)
      for (let i = 0; i < stride; i++) {
        const at = r * stride + i
        if (i >= heads * n) {
          expect([a[at], b[at]]).toEqual([UNTOUCHED, before[at]])
          continue
        }
        const head = Math.floor(i / n)
        const values = { ...x, values: x.values.subarray(head * k) }
        const { sum, size } = dot(values, r, weight.values, i * k, k)
        const bound = sumBound(size, k)
        expectWithin(bf16Value(a[at]!), sum, bound + storeBound(sum), `row ${r}, column ${i}`)
        const want = sum + bias[i % n]! + before[at]!
        expectWithin(b[at]!, want, bound + Math.abs(want) * 1e-6 + 1e-6, `row ${r}, column ${i}, added`)
      }
  })

  it('gives a row the same bits alone and in any company', () => {
    const [rows, n, k] = [9, 512, 2304]
    const x = gpu.bf16(5, rows, k)
    const weight = gpu.matrix(6, n, k, 1)
    const out = gpu.address(gpu.untouched(2 * rows * n))
    const run = (first: number, to: number, count: number) =>
      bindGemv(gpu.kernels, {
        x: { address: x.address + first * k * 2, stride: k },
        weight,
        out: { address: to, stride: n, dtype: 'bf16' },
      })(count)
    run(0, out, rows)
    for (const [first, count] of [
      [0, 1],
      [1, 2],
      [3, 3],
      [6, 3],
    ] as const)
      run(first, out + (rows + first) * n * 2, count)
    const got = gpu.read(new Uint16Array(2 * rows * n), out)
    expect(got.subarray(rows * n)).toEqual(got.subarray(0, rows * n))
  })

  it('keeps the order of a chain of products that overlap, alone and in a graph', () => {
    const n = 1024
    const weight = gpu.matrix(7, n, n, 1)
    const first = gpu.bf16(8, 1, n)
    // Each product reads what the one before wrote. Numbers grow about 18-fold a product.
    const chain = (): number[] => [first.address, ...Array.from({ length: 6 }, () => gpu.address(gpu.untouched(n)))]
    const queue = (places: readonly number[], wait: boolean) => {
      for (let i = 1; i < places.length; i++) {
        bindGemv(gpu.kernels, {
          x: { address: places[i - 1]!, stride: n },
          weight,
          out: { address: places[i]!, stride: n, dtype: 'bf16' },
        })(1)
        if (wait) gpu.kernels.stream.synchronize()
      }
    }
    const [apart, together, captured] = [chain(), chain(), chain()]
    queue(apart, true)
    const want = gpu.read(new Uint16Array(n), apart.at(-1)!).slice()
    expect(want.every(bits => Number.isFinite(bf16Value(bits)))).toBe(true)
    queue(together, false)
    expect(gpu.read(new Uint16Array(n), together.at(-1)!)).toEqual(want)
    using graph = gpu.kernels.stream.capture(() => queue(captured, false))
    for (let i = 0; i < 20; i++) graph.launch()
    expect(gpu.read(new Uint16Array(n), captured.at(-1)!)).toEqual(want)
  })
})

describe('a matrix a head', () => {
  it.each([
    [1, 16, 512, 128],
    [4, 16, 128, 512],
    [5, 16, 512, 128],
    [40, 16, 128, 512],
    [7, 3, 24, 72],
  ])('%i rows, %i heads, %i outputs, %i inputs, apart from each other', (rows, heads, n, k) => {
    const [xHead, outHead] = [k + 64, n + 16]
    const x = gpu.bf16(9, rows, heads * xHead + 8)
    const weight = gpu.matrix(10, n, k, heads)
    const stride = heads * outHead + 8
    const out = gpu.untouched(rows * stride)
    const kernel = fastHeadLinear(gpu.kernels, {
      out: { span: out, offset: 0, stride, dtype: 'bf16' },
      outHeadStride: outHead,
      x: { span: x.span, offset: 0, stride: x.stride, dtype: 'bf16' },
      xHeadStride: xHead,
      weight,
    })
    expect(kernel).toBeDefined()
    kernel!(rows)
    const got = gpu.read(new Uint16Array(rows * stride), gpu.address(out))
    for (let r = 0; r < rows; r++)
      for (let i = 0; i < stride; i++) {
        const [head, c] = [Math.floor(i / outHead), i % outHead]
        const bits = got[r * stride + i]!
        if (head >= heads || c >= n) {
          expect(bits).toBe(UNTOUCHED)
          continue
        }
        const values = { ...x, values: x.values.subarray(head * xHead) }
        const { sum, size } = dot(values, r, weight.values, (head * n + c) * k, k)
        expectWithin(bf16Value(bits), sum, sumBound(size, k) + storeBound(sum), `row ${r}, head ${head}, column ${c}`)
      }
  })
})
