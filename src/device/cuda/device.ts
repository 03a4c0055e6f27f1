// A GPU as the engine uses it in one thread: context, kernels of a stream, operations, packing, memory. The main thread makes one to
// lend memory and pack weights; each rank's thread makes its own on the same ordinal and reaches the same memory.
import type { DeviceOps } from '../device-ops.js'
import { CudaContext } from './context.js'
import { cudaOps, plainCudaOps } from './cuda-ops.js'
import { StreamKernels } from './kernels.js'
import { requireLibraries } from './libraries.js'
import { DeviceArenaLender } from './memory.js'
import { checkFaults, FAULT_BYTES, type Fault, faultAddress, faultOf } from './ops/faults.js'
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
  /** Waits for what is queued. @returns the first index outside its table that kernels met; it stays until `settle` */
  readFault(): Fault | null
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
  // Taken now: nothing can be while a graph is captured.
  const faultsAt = faultAddress(kernels)
  const words = new Int32Array(FAULT_BYTES / 4)
  const readFault = () => {
    kernels.stream.synchronize()
    context.download(words, faultsAt)
    return faultOf(words)
  }
  const packer = new CudaPacker(context, kernels)
  return {
    name: `${context.device} (${context.properties.name})`,
    context,
    kernels,
    ops: plain ? plainCudaOps(kernels) : cudaOps(kernels),
    packer,
    createLender: (reserve, purpose) => new DeviceArenaLender(context, reserve, purpose),
    readFault,
    settle() {
      if (!readFault()) return
      context.upload(faultsAt, new Int32Array(FAULT_BYTES / 4))
      checkFaults(words)
    },
    [Symbol.dispose]() {
      packer[Symbol.dispose]()
      kernels[Symbol.dispose]()
      context[Symbol.dispose]()
    },
  }
}
