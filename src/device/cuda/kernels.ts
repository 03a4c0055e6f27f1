// What an operation on a GPU binds with: kernels by file and name, addresses of its operands, scratch memory, one stream.
import type { MemorySpan } from '../memory.js'
import type { Operand } from '../ops.js'
import type { CudaBlas, CudaFunction, CudaProperties, CudaStream, KernelOptions, TensorMapSpec } from './types.js'

/**
 * The kernels of one rank on one GPU.
 *
 * @example
 *   // kernels/cuda/norm.cu: extern "C" __global__ void add_bf16(bf16 *out, const bf16 *a, const bf16 *b, int rows, int width, ...)
 *   const add = (d: CudaKernels): Partial<Ops> => ({
 *     add({ out, a, b, width }) {
 *       const args = d.kernel('norm.cu', `add_${out.dtype ?? 'f32'}`).bind(
 *         ['u64', 'u64', 'u64', 'i32', 'i32'],
 *         [d.address(out), d.address(a), d.address(b), 0, width],
 *       )
 *       return rows => {
 *         if (rows === 0) return
 *         args.set(3, rows)
 *         args.launch([rows, 1, 1], 256)
 *       }
 *     },
 *   })
 */
export interface CudaKernels {
  readonly properties: CudaProperties
  readonly stream: CudaStream
  readonly blas: CudaBlas
  /**
   * A kernel of kernels/cuda/`file`, compiled for this GPU or taken from the cache. Asking again costs a look-up.
   * @throws CudaError SY_CUDA_COMPILE with the compiler's text, SY_CUDA_NO_KERNEL when the file has no such function
   */
  kernel(file: string, name: string, options?: KernelOptions): CudaFunction
  /** Where a span lies for the GPU: device memory as it is; host memory is registered on first use. */
  addressOf(span: MemorySpan): number
  /** Where an operand's first element lies. */
  address(operand: Operand): number
  /** Scratch of this stream, zeroed when it is made; operations that ask with the same purpose share it. */
  workspace(bytes: number, purpose: string): number
  /** 128 bytes for an argument of type 'tensorMap'. */
  tensorMap(spec: TensorMapSpec): Uint8Array
}
