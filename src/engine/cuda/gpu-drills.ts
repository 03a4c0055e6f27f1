// What a GPU itself does wrong in a failure drill: kernels made to break or to hold up the stream they are queued on.
import type { CudaKernels } from '../../device/cuda/kernels.js'
import type { GpuStrike } from '../drill.js'

/** In the first page of every process, where nothing is. */
const NOWHERE = 16
/** Long enough to count as endless, short enough that a GPU is not lost to it. */
const SPIN_MICROSECONDS = 60_000_000

/** Loads the kernel now: in a step the driver might wait for running kernels before it loads one. */
export function gpuStrike(kernels: CudaKernels, kind: GpuStrike): () => void {
  const out = kernels.workspace(64, 'failure drill')
  const launch =
    kind === 'bad_address'
      ? kernels.kernel('probe.cu', 'probe_read').bind(['u64', 'u64'], [out, NOWHERE])
      : kernels.kernel('probe.cu', 'probe_delay').bind(['u64', 'i32', 'i32'], [out, 1, SPIN_MICROSECONDS])
  return () => launch.launch([1, 1, 1], 1)
}
