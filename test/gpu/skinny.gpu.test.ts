// Products of few rows against float64 sums: dense, masked and routed, every capacity, tails of every size.
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { bindSkinny } from '../../src/device/cuda/ops/skinny.js'
import { bf16Bits, bf16Value, expectWithin, Gpu, product, storeBound, UNTOUCHED } from './gemm.suite.js'

let gpu: Gpu
beforeAll(() => {
  gpu = new Gpu()
})
afterAll(() => gpu[Symbol.dispose]())

const f32At = (values: readonly number[]): number => gpu.address(gpu.put(Float32Array.from(values)))

describe('dense', () => {
  it.each([
    [1, 16, 64],
    [1, 48, 576],
    [8, 2048, 512],
    [3, 40, 2048],
    [9, 200, 768],
    [16, 136, 1088],
    [17, 64, 2048],
    [32, 2128, 256],
    [50, 72, 512],
    [64, 32, 4096],
  ])('%i rows, %i outputs, %i inputs: bf16, f32 with bias, added', (rows, n, k) => {
    const x = gpu.bf16(1, rows, k, k + 8)
    const w = gpu.matrix(2, n, k, 1)
    const stride = n + 8
    const bias = Array.from({ length: n }, (_, i) => Math.fround(Math.sin(i) * 3))
    const before = Array.from({ length: rows * stride }, (_, i) => Math.fround(Math.cos(i)))
    const spec = {
      x: { address: x.address, stride: x.stride },
      weight: w,
      gated: false,
      groups: { mode: 'dense' },
    } as const
    const plain = gpu.address(gpu.untouched(rows * stride))
    bindSkinny(gpu.kernels, { ...spec, out: { address: plain, stride, dtype: 'bf16' } }, rows)!(rows)
    const biased = f32At(before)
    bindSkinny(gpu.kernels, { ...spec, out: { address: biased, stride, dtype: 'f32' }, bias: f32At(bias) }, rows)!(rows)
    const added = f32At(before)
    bindSkinny(gpu.kernels, { ...spec, out: { address: added, stride, dtype: 'f32' }, accumulate: true }, rows)!(rows)
    const a = gpu.read(new Uint16Array(rows * stride), plain)
    const b = gpu.read(new Float32Array(rows * stride), biased)
    const c = gpu.read(new Float32Array(rows * stride), added)
    for (let r = 0; r < rows; r++)
      for (let i = 0; i < stride; i++) {
        const at = r * stride + i
        if (i >= n) {
          expect([a[at], b[at], c[at]]).toEqual([UNTOUCHED, before[at], before[at]])
          continue
        }
        const { want, bound } = product(x, r, w, 0, i, false)
        const slack = bound + Math.abs(want) * 1e-6 + 1e-6
        expectWithin(bf16Value(a[at]!), want, bound + storeBound(want), `row ${r}, column ${i}`)
        expectWithin(b[at]!, want + bias[i]!, slack, `row ${r}, column ${i}, biased`)
        expectWithin(c[at]!, want + before[at]!, slack, `row ${r}, column ${i}, added`)
      }
  })

  it('gives a row the same bits alone and in any company', () => {
    const [rows, n, k] = [33, 512, 768]
    const x = gpu.bf16(5, rows, k)
    const w = gpu.matrix(6, n, k, 1)
    const out = gpu.address(gpu.untouched(2 * rows * n))
    const bind = (first: number, to: number, count: number) =>
      bindSkinny(
        gpu.kernels,
        {
          x: { address: x.address + first * k * 2, stride: k },
          weight: w,
          out: { address: to, stride: n, dtype: 'bf16' },
          gated: false,
          groups: { mode: 'dense' },
        },
        count,
      )!(count)
    bind(0, out, rows)
    for (const [first, count] of [
      [0, 1],
      [1, 8],
      [9, 13],
      [22, 11],
    ] as const)
      bind(first, out + (rows + first) * n * 2, count)
    const got = gpu.read(new Uint16Array(2 * rows * n), out)
    expect(got.subarray(rows * n)).toEqual(got.subarray(0, rows * n))
  })
})

describe('masked', () => {
  it.each([
    [[8, 8, 8, 8], 8, 256, 512, false],
    [[0, 3, 16, 1, 0, 9], 16, 72, 320, false],
    [[40, 0, 7, 64], 64, 144, 768, false],
    [[5, 0, 31], 32, 40, 1024, true],
  ])('counts %j of %i', (counts, room, n, k, gated) => {
    const groups = counts.length
    const x = gpu.bf16(7, groups * room, k)
    const w = gpu.matrix(8, gated ? 2 * n : n, k, groups)
    const out = gpu.address(gpu.untouched(groups * room * n))
    bindSkinny(
      gpu.kernels,
      {
        x: { address: x.address, stride: k },
        weight: w,
        out: { address: out, stride: n, dtype: 'bf16' },
        gated,
        groups: { mode: 'masked', counts: gpu.ints(counts), room },
      },
      room,
    )!(room)
    const got = gpu.read(new Uint16Array(groups * room * n), out)
    for (let r = 0; r < groups * room; r++)
      for (let c = 0; c < n; c++) {
        const g = Math.floor(r / room)
        if (r % room >= counts[g]!) expect(got[r * n + c]).toBe(UNTOUCHED)
        else {
          const { want, bound } = product(x, r, w, g, c, gated)
          expectWithin(bf16Value(got[r * n + c]!), want, bound + storeBound(want), `row ${r}, column ${c}`)
        }
      }
  })
})

describe('routed', () => {
  it.each([
    [1, 2, 6, 1, false],
    [20, 3, 6, 3, false],
    [70, 4, 5, 1, true],
    [40, 8, 160, 8, true],
    [300, 2, 4, 2, false],
  ])('%i rows of top-%i of %i experts, a row of x for %i slots, gated %s', (rows, topK, experts, divisor, gated) => {
    const [n, k] = [72, 320]
    const x = gpu.bf16(9, Math.ceil((rows * topK) / divisor), k)
    const w = gpu.matrix(10, gated ? 2 * n : n, k, experts)
    const stride = topK + 1
    // Some of no expert, some of experts that do not exist; expert 1 is hot.
    const ids = Array.from({ length: rows * stride }, (_, i) =>
      i % 7 === 3 ? -1 : i % 11 === 5 ? experts : i % 3 === 0 ? 1 : (bf16Bits(Math.sin(i)) >> 3) % experts,
    )
    const slots = rows * topK
    const out = gpu.address(gpu.untouched(slots * n))
    const groups = { mode: 'routed', ids: gpu.ints(ids), stride, topK, xDivisor: divisor } as const
    const spec = { x: { address: x.address, stride: k }, weight: w, gated, groups }
    bindSkinny(gpu.kernels, { ...spec, out: { address: out, stride: n, dtype: 'bf16' } }, rows)!(rows)
    const got = gpu.read(new Uint16Array(slots * n), out)
    for (let s = 0; s < slots; s++)
      for (let c = 0; c < n; c++) {
        const id = ids[Math.floor(s / topK) * stride + (s % topK)]!
        if (id < 0 || id >= experts) expect(got[s * n + c]).toBe(UNTOUCHED)
        else {
          const { want, bound } = product(x, Math.floor(s / divisor), w, id, c, gated)
          expectWithin(bf16Value(got[s * n + c]!), want, bound + storeBound(want), `slot ${s}, column ${c}`)
        }
      }
  })
})
