// Indices that kernels read from memory: a kernel that meets one outside its table leaves the row out and says so in two words
// that all kernels of a stream share. Who waits for the stream reads them.
import { Unreachable } from '../../../config/errors.js'
import type { CudaKernels } from '../kernels.js'

/** Bytes of the fault words: kind, index. */
export const FAULT_BYTES = 8

/** By kind, as in kernels/cuda/elements.cuh. */
const WHAT = ['', 'row', 'slot', 'position', 'page', 'expert'] as const

/** Where the fault words of this stream's kernels lie on the device. */
export const faultAddress = (d: CudaKernels): number => d.workspace(64, 'faults')

/** @throws Unreachable naming the index when a kernel met one outside its table. @param words copied from the device */
export function checkFaults(words: Int32Array): void {
  const [kind, index] = [words[0]!, words[1]!]
  if (kind !== 0) throw new Unreachable(`${WHAT[kind] ?? 'index'} ${index} lies outside its table`)
}
