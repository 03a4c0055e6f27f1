// A GPU as the engine uses it in one thread: context, kernels of a stream, operations, packing, memory. The main thread makes one to
// lend memory and pack weights; each rank's thread makes its own on the same ordinal and reaches the same memory.
import type { DeviceOps } from '../device-ops.js'
import { CudaContext } from './context.js'
import { cudaOps, plainCudaOps } from './cuda-ops.js'
import { StreamKernels } from './kernels.js'
import { requireLibraries } from './libraries.js'
import { DeviceArenaLender } from './memory.js'
import { checkFaults, FAULT_BYTES, faultAddress } from './ops/faults.js'
import { CudaPacker } from './packer.js'
import type { CudaMemoryLender } from './types.js'

export interface CudaDeviceOptions {
  readonly ordinal: number
  /** Plain kernels only: the reference on the device. */
  readonly plain?: boolean
  /** The context is another's, who holds it for longer: see CudaContext. */
  readonly borrowed?: boolean
  /** Called before kernels are compiled or loaded, which may take seconds; may throw. */
  beforeLoad?(): void
}

export interface CudaDevice extends Disposable {
  /** "cuda:0 (NVIDIA H200)" */
  readonly name: string
  readonly context: CudaContext
  readonly kernels: StreamKernels
  readonly ops: DeviceOps
  readonly packer: CudaPacker
  /** @param reserve bytes taken at once */
  createLender(reserve?: number, purpose?: string): CudaMemoryLender
  /** Where kernels leave word of an index outside its table: two i32 words, to be copied with a step's results and checked. */
  readonly faults: { readonly address: number; readonly bytes: number }
  /**
   * Waits for the stream and looks at the fault words, which are cleared. For tests and start-up, not for a step.
   * @throws Unreachable naming the index
   */
  settle(): void
}

/** @throws CudaError SY_CUDA_UNAVAILABLE, SY_CUDA_NO_DEVICE, SY_CUDA_OLD_DEVICE */
export function createCudaDevice({
  ordinal,
  plain = false,
  borrowed = false,
  beforeLoad,
}: CudaDeviceOptions): CudaDevice {
  const context = new CudaContext(ordinal, requireLibraries(), borrowed)
  const kernels = new StreamKernels(context, beforeLoad)
  const faults = { address: faultAddress(kernels), bytes: FAULT_BYTES }
  const words = new Int32Array(FAULT_BYTES / 4)
  const packer = new CudaPacker(context, kernels)
  return {
    name: `${context.device} (${context.properties.name})`,
    context,
    kernels,
    ops: plain ? plainCudaOps(kernels) : cudaOps(kernels),
    packer,
    createLender: (reserve, purpose) => new DeviceArenaLender(context, reserve, purpose),
    faults,
    settle() {
      kernels.stream.synchronize()
      context.download(words, faults.address)
      if (words[0] !== 0) context.upload(faults.address, new Int32Array(FAULT_BYTES / 4))
      checkFaults(words)
    },
    [Symbol.dispose]() {
      packer[Symbol.dispose]()
      kernels[Symbol.dispose]()
      context[Symbol.dispose]()
    },
  }
}
