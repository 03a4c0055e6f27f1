// What benchmarks of small kernels share: operands whose numbers the host knows, results read back, and how far off they are.
import { bf16ToNumber } from '../../cpu/number-formats.js'
import type { MemorySpan } from '../../memory.js'
import type { Kernel, Operand, ParameterVector } from '../../ops.js'
import type { BenchDevice } from './bench.js'

/** Runs of a kernel in one graph. */
const IN_A_GRAPH = 20

/** Operands of benchmarks, filled from the host where their numbers must be known. */
export class BenchOperands {
  readonly b: BenchDevice
  #seed = 12345

  constructor(b: BenchDevice) {
    this.b = b
  }

  /** Uniform in (-scale, scale). */
  numbers(count: number, scale = 1): Float32Array {
    let s = this.#seed++ | 0
    return Float32Array.from({ length: count }, () => {
      s = (Math.imul(s, 1664525) + 1013904223) | 0
      return (s / 2147483648) * scale
    })
  }

  half(rows: number, width: number, span: MemorySpan = this.b.random(rows * width)): Operand {
    return { span, dtype: 'bf16', offset: 0, stride: width }
  }

  wide(values: Float32Array, width: number): Operand {
    return { span: this.#put(values), offset: 0, stride: width }
  }

  ints(values: Int32Array, width = 1): Operand {
    return { span: this.#put(values), offset: 0, stride: width }
  }

  vector(values: Float32Array): ParameterVector {
    return { length: values.length, span: this.#put(values) }
  }

  empty(rows: number, width: number, bytes = 4): Operand {
    return { span: this.b.lend(rows * width * bytes), offset: 0, stride: width }
  }

  #put(values: Float32Array | Int32Array): MemorySpan {
    const span = this.b.lend(values.byteLength)
    this.b.context.upload(this.b.kernels.addressOf(span), values)
    return span
  }

  /** `rows` rows of `width` elements from row `first` on. */
  read(o: Operand, rows: number, width: number, first = 0): Float32Array {
    this.b.kernels.stream.synchronize()
    const address = this.b.kernels.addressOf(o.span) + first * o.stride * (o.dtype === 'bf16' ? 2 : 4)
    const values = new Float32Array(rows * width)
    if (o.dtype !== 'bf16') {
      this.b.context.download(values, address)
      return values
    }
    const bits = new Uint16Array(rows * width)
    this.b.context.download(bits, address)
    bits.forEach((h, i) => {
      values[i] = bf16ToNumber(h)
    })
    return values
  }

  readInts(o: Operand, count: number): Int32Array {
    return new Int32Array(this.read({ ...o, dtype: 'f32' }, count, 1).buffer)
  }

  time(kernel: Kernel, rows: number): { medianUs: number; minUs: number } {
    return this.b.timeInGraph(Array.from({ length: IN_A_GRAPH }, () => () => kernel(rows)))
  }
}

/** Largest difference over 2^-8 of the wanted number and a little. */
export const worstOf = (got: ArrayLike<number>, want: readonly number[]): number =>
  want.reduce((worst, w, i) => Math.max(worst, Math.abs(got[i]! - w) / (2 ** -8 * Math.abs(w) + 1e-5)), 0)
