// Routed experts in bf16, slot by slot and sorted, against float64: absent and repeated experts, ragged counts, both ways of storing.
import { describe, expect, it } from 'vitest'
import { fastExperts } from '../../src/device/cuda/ops/experts-fast.js'
import type { GroupedVariant } from '../../src/device/cuda/ops/grouped-gemm.js'
import { CounterRandom, STREAM } from '../../src/runtime/random.js'
import { bf16Bits, bf16Value, dot, expectWithin, openGpu, silu } from './gemm.suite.js'

const gpu = openGpu()

const WAYS: readonly (readonly [string, number, GroupedVariant])[] = [
  ['slot by slot', 4096, 'mma'],
  ['sorted, mma', 0, 'mma'],
  ['sorted, sm90', 0, 'sm90'],
]

describe.each(WAYS)('%s', (_, gemvSlots, variant) => {
  it.each([
    [1, 8, 16, 128, 64, 'bf16'],
    [7, 3, 5, 144, 80, 'f32'],
    [40, 4, 12, 256, 192, 'bf16'],
    [300, 2, 3, 64, 128, 'bf16'],
    [200, 8, 130, 64, 64, 'f32'],
  ] as const)(
    '%i rows of top-%i of %i experts, hidden %i, inner %i, out %s',
    (rows, topK, experts, hidden, inter, dtype) => {
      const d = gpu.kernels
      const random = new CounterRandom(3, STREAM.benchmark)
      const x = gpu.bf16(1, rows, hidden, hidden + 8)
      const gateUp = gpu.matrix(2, 2 * inter, hidden, experts)
      const down = gpu.matrix(3, hidden, inter, experts)
      const [idStride, weightStride, stride] = [topK + 3, topK + 1, hidden + 16]
      const ids = new Int32Array(rows * idStride).map((_v, i) =>
        i % 13 === 4 ? -1 : i % 5 === 0 ? 0 : random.below(experts),
      )
      const weights = new Float32Array(rows * weightStride).map(() => random.unit())
      const bytes = dtype === 'bf16' ? 2 : 4
      const out = gpu.put(new Uint16Array((rows * stride * bytes) / 2).fill(0xffff))
      const kernel = fastExperts(
        d,
        {
          out: { span: out, offset: 0, stride, dtype },
          x: { span: x.span, offset: 0, stride: x.stride, dtype: 'bf16' },
          ids: { span: gpu.put(ids), offset: 0, stride: idStride },
          weights: { span: gpu.put(weights), offset: 0, stride: weightStride },
          topK,
          gateUp,
          down,
          activation: { kind: 'silu' },
          scratch: {
            span: gpu.lend(rows * topK * (3 * inter + hidden) * 2 + 65536),
            offset: 0,
            stride: 0,
            dtype: 'bf16',
          },
        },
        { variant, gemvSlots },
      )
      expect(kernel).toBeDefined()
      const read = () => gpu.read(new Uint16Array((rows * stride * bytes) / 2), d.addressOf(out)).slice()
      kernel!(rows)
      const got = read()
      const at = (i: number): number =>
        dtype === 'bf16' ? bf16Value(got[i]!) : new Float32Array(got.buffer, i * 4, 1)[0]!
      for (let r = 0; r < rows; r++) {
        // The inner rows of each slot as the device stores them, to the nearest bf16.
        const inner = Array.from({ length: topK }, (_v, s) => {
          const e = ids[r * idStride + s]!
          if (e < 0) return undefined
          const values = new Float32Array(inter)
          for (let i = 0; i < inter; i++) {
            const gate = dot(x, r, gateUp.values, (e * 2 * inter + i) * hidden, hidden).sum
            const up = dot(x, r, gateUp.values, (e * 2 * inter + inter + i) * hidden, hidden).sum
            values[i] = bf16Value(bf16Bits(silu(gate) * up))
          }
          return { e, rows: { span: x.span, address: 0, stride: 0, values } }
        })
        for (let c = 0; c < hidden; c += rows > 100 ? 7 : 1) {
          let [want, bound] = [0, 0]
          inner.forEach((slot, s) => {
            if (!slot) return
            const { sum, size } = dot(slot.rows, 0, down.values, (slot.e * hidden + c) * inter, inter)
            const weight = weights[r * weightStride + s]!
            want += weight * sum
            // An inner value may round to its neighbour: one unit of bf16 of each. Sorted rows are stored as bf16 before they are summed.
            bound += weight * (size * 2 ** -7 + Math.abs(sum) * 2 ** -8)
          })
          expectWithin(at(r * stride + c), want, bound + Math.abs(want) * 2 ** -8 + 1e-6, `row ${r}, column ${c}`)
        }
        const edge = dtype === 'bf16' ? got[r * stride + hidden] : got[2 * (r * stride + hidden)]
        expect(edge, `past the end of row ${r}`).toBe(0xffff)
      }
      // Once more: counters are back where they began, and no bit depends on the order in which blocks counted.
      kernel!(rows)
      expect(read()).toEqual(got)
    },
  )
})
