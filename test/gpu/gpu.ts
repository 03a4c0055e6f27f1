// What GPU tests share: the GPU of a file, its memory as typed arrays, bf16 operands from seeded numbers.
import { afterAll } from 'vitest'
import { CudaContext } from '../../src/device/cuda/context.js'
import { StreamKernels } from '../../src/device/cuda/kernels.js'
import { DeviceArenaLender } from '../../src/device/cuda/memory.js'
import type { MemorySpan } from '../../src/device/memory.js'
import type { PackedMatrix } from '../../src/device/ops.js'
import { CounterRandom, STREAM } from '../../src/runtime/random.js'
import { fromBf16, toBf16 } from '../number-encoding.js'

/** Number of the GPU that tests use. */
export const TEST_GPU = Number(process.env['SWITCHYARD_TEST_GPU'] ?? 0)

/** Bits of a bf16 NaN: what nobody wrote. */
export const UNTOUCHED = 0xffff

/** bf16 rows on the device and their values here. */
export interface Rows {
  readonly span: MemorySpan
  readonly address: number
  readonly stride: number
  readonly values: Float32Array
}

/** Throws, with doctor's text, where no GPU can be used: `npm run test:gpu` is for machines with one. */
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

  put(data: ArrayBufferView): MemorySpan {
    const span = this.lend(data.byteLength)
    this.context.upload(this.address(span), data)
    return span
  }

  /** As `put`. @returns the address */
  at(data: ArrayBufferView): number {
    return this.address(this.put(data))
  }

  ints(values: readonly number[]): number {
    return this.at(Int32Array.from(values))
  }

  /** Address of memory that holds zeros. */
  zeros(bytes: number): number {
    return this.address(this.lend(bytes))
  }

  /** Memory of `elements` bf16 that hold NaN. */
  untouched(elements: number): MemorySpan {
    return this.put(new Uint16Array(elements).fill(UNTOUCHED))
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

  /** Reads after everything queued has finished. */
  read<T extends ArrayBufferView>(view: T, address: number): T {
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

/** The GPU of a file of tests. @param spoiled its last test ends the context on purpose: nothing can be given back then */
export function openGpu({ spoiled = false } = {}): Gpu {
  const gpu = new Gpu()
  if (!spoiled) afterAll(() => gpu[Symbol.dispose]())
  return gpu
}
