// Indices that kernels read from memory: a kernel that meets one outside its table leaves the row out and says so in two words
// that all kernels of a stream share. Who waits for the stream reads them.
import { Unreachable } from '../../../config/errors.js'
import type { CudaKernels } from '../kernels.js'

/** Bytes of the fault words: kind, index. */
export const FAULT_BYTES = 8

/** By kind, as in kernels/cuda/elements.cuh. */
const WHAT = [null, 'row', 'slot', 'position', 'page', 'expert'] as const

/** The table that an index is of. */
export type FaultKind = NonNullable<(typeof WHAT)[number]>

export interface Fault {
  readonly kind: FaultKind
  readonly index: number
}

/** Where the fault words of this stream's kernels lie on the device. */
export const faultAddress = (d: CudaKernels): number => d.workspace(64, 'faults')

/** The first index outside its table that kernels met, or null. @param words copied from the device */
export function faultOf(words: Int32Array): Fault | null {
  const [kind, index] = [words[0]!, words[1]!]
  return kind === 0 ? null : { kind: WHAT[kind] ?? 'row', index }
}

/** @throws Unreachable naming the index when a kernel met one outside its table. @param words copied from the device */
export function checkFaults(words: Int32Array): void {
  const fault = faultOf(words)
  if (fault) throw new Unreachable(`${fault.kind} ${fault.index} lies outside its table`)
}
