// What GPU tests share: one context and one set of kernels a file, memory of the device as typed arrays.
import { afterAll } from 'vitest'
import { CudaContext } from '../../src/device/cuda/context.js'
import { StreamKernels } from '../../src/device/cuda/kernels.js'
import { DeviceArenaLender } from '../../src/device/cuda/memory.js'
import { fromBf16, toBf16 } from '../number-encoding.js'

/** Number of the GPU that tests use. */
export const TEST_GPU = Number(process.env['SWITCHYARD_TEST_GPU'] ?? 0)

export interface Gpu {
  readonly context: CudaContext
  readonly kernels: StreamKernels
  /** Device memory with the bytes of `view`. */
  put(view: ArrayBufferView): number
  /** Zeroed device memory. */
  zeros(bytes: number): number
  /** Waits for the stream and fills `view` from the device. */
  get<T extends ArrayBufferView>(view: T, address: number): T
}

/** Throws, with doctor's text, where no GPU can be used: `npm run test:gpu` is for machines with one. */
export function openGpu(): Gpu {
  const context = new CudaContext(TEST_GPU)
  const kernels = new StreamKernels(context)
  const lender = new DeviceArenaLender(context)
  const zeros = (bytes: number): number => kernels.addressOf(lender.lend(bytes, 'test'))
  afterAll(() => {
    try {
      kernels[Symbol.dispose]()
      lender[Symbol.dispose]()
    } catch {
      // A test that spoiled the context on purpose, or one that failed and says so itself.
    }
  })
  return {
    context,
    kernels,
    zeros,
    put(view) {
      const address = zeros(view.byteLength)
      context.upload(address, view)
      return address
    },
    get(view, address) {
      kernels.stream.synchronize()
      context.download(view, address)
      return view
    },
  }
}

/** Rounds to nearest even, as the device does. */
export const bf16Of = (values: ArrayLike<number>): Uint16Array => Uint16Array.from(values, toBf16)

export const numbersOf = (bits: Uint16Array): Float32Array => Float32Array.from(bits, fromBf16)
