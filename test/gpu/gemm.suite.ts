// What the suites of products on a GPU share: bf16 operands from seeded numbers, results read back, sums in float64.
import { expect } from 'vitest'
import { CudaContext } from '../../src/device/cuda/context.js'
import { StreamKernels } from '../../src/device/cuda/kernels.js'
import { DeviceArenaLender } from '../../src/device/cuda/memory.js'
import type { MemorySpan } from '../../src/device/memory.js'
import type { PackedMatrix } from '../../src/device/ops.js'
import { CounterRandom, STREAM } from '../../src/runtime/random.js'
import { fromBf16, toBf16 } from '../number-encoding.js'
import { TEST_GPU } from './gpu.js'

export { fromBf16 as bf16Value, toBf16 as bf16Bits } from '../number-encoding.js'

/** bf16 rows on the device and their values here. */
export interface Rows {
  readonly span: MemorySpan
  readonly address: number
  readonly stride: number
  readonly values: Float32Array
}

/** Bits of a bf16 NaN: what nobody wrote. */
export const UNTOUCHED = 0xffff

export class Gpu implements Disposable {
  readonly context = new CudaContext(TEST_GPU)
  readonly kernels = new StreamKernels(this.context)
  readonly #lender = new DeviceArenaLender(this.context)

  lend(bytes: number): MemorySpan {
    return this.#lender.lend(bytes, 'test')
  }

  address(span: MemorySpan): number {
    return this.kernels.addressOf(span)
  }

  bf16(seed: number, rows: number, width: number, stride = width): Rows {
    const random = new CounterRandom(seed, STREAM.benchmark)
    const bits = new Uint16Array(rows * stride)
    const values = new Float32Array(rows * stride)
    for (let i = 0; i < bits.length; i++) {
      bits[i] = toBf16(random.unit() * 2 - 1)
      values[i] = fromBf16(bits[i]!)
    }
    const span = this.put(bits)
    return { span, address: this.address(span), stride, values }
  }

  matrix(seed: number, n: number, k: number, count: number): PackedMatrix & { readonly values: Float32Array } {
    const { span, values } = this.bf16(seed, count * n, k)
    return { kind: 'bf16', n, k, count, strideBytes: n * k * 2, span, values }
  }

  put(data: Uint16Array | Int32Array | Float32Array): MemorySpan {
    const span = this.lend(data.byteLength)
    this.context.upload(this.address(span), data)
    return span
  }

  /** Memory of `elements` bf16 that hold NaN. */
  untouched(elements: number): MemorySpan {
    return this.put(new Uint16Array(elements).fill(UNTOUCHED))
  }

  ints(values: readonly number[]): number {
    return this.address(this.put(Int32Array.from(values)))
  }

  /** Reads after everything queued has finished. */
  read<T extends Uint16Array | Float32Array>(view: T, address: number): T {
    this.kernels.stream.synchronize()
    this.context.download(view, address)
    return view
  }

  [Symbol.dispose](): void {
    this.#lender[Symbol.dispose]()
    this.kernels[Symbol.dispose]()
    this.context[Symbol.dispose]()
  }
}

export const silu = (x: number): number => x / (1 + Math.exp(-x))

/** Sum of products of row `r` of x and row `n` of W, and of their absolute values. */
export function dot(x: Rows, r: number, w: Float32Array, at: number, k: number): { sum: number; size: number } {
  let [sum, size] = [0, 0]
  for (let i = 0; i < k; i++) {
    const term = x.values[r * x.stride + i]! * w[at + i]!
    sum += term
    size += Math.abs(term)
  }
  return { sum, size }
}

/** What a product may differ by: tensor cores may cut a bit of f32 at each of their steps of 8 or more. */
export const sumBound = (size: number, k: number): number => Math.max(4, k / 8) * 2 ** -23 * size
/** Rounding of a result to bf16. */
export const storeBound = (want: number): number => Math.abs(want) * 2 ** -8 + 1e-30

export function expectWithin(got: number, want: number, bound: number, where: string): void {
  if (!(Math.abs(got - want) <= bound))
    expect.fail(`${where}: ${got}, expected ${want} within ${bound.toExponential(2)}`)
}

/** A product's element by definition, with its bound. `gated`: n columns, gate row c and up row n + c. */
export function product(
  x: Rows,
  r: number,
  w: PackedMatrix & { readonly values: Float32Array },
  group: number,
  c: number,
  gated: boolean,
): { want: number; bound: number } {
  const { n, k } = w
  const a = dot(x, r, w.values, (group * n + c) * k, k)
  if (!gated) return { want: a.sum, bound: sumBound(a.size, k) }
  const b = dot(x, r, w.values, (group * n + n / 2 + c) * k, k)
  const gate = silu(a.sum)
  const bound = 1.1 * Math.abs(b.sum) * sumBound(a.size, k) + Math.abs(gate) * sumBound(b.size, k)
  // silu through a fast exponential: a few units of f32 more.
  return { want: gate * b.sum, bound: bound + Math.abs(gate * b.sum) * 2 ** -18 }
}
