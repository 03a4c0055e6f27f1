// Tensor maps: what the tensor memory accelerator of sm_90 is told about an array, 128 opaque bytes encoded by the driver.
// Numbers are the enumerators of cuTensorMapEncodeTiled (cuda.h).
import type { CudaDriver } from './driver.js'
import type { Koffi } from './libraries.js'
import { PackedMemory } from './packed-memory.js'
import type { TensorMapSpec } from './types.js'

export const TENSOR_MAP_BYTES = 128
const DATA_TYPE = { u8: 0, f32: 7, bf16: 9 } as const
const SWIZZLE = { none: 0, '32B': 1, '64B': 2, '128B': 3 } as const
const PROMOTION = { none: 0, '64B': 1, '128B': 2, '256B': 3 } as const

/** @throws CudaError SY_CUDA_CALL when the driver refuses address, sizes, strides or box */
export function encodeTensorMap(driver: CudaDriver, koffi: Koffi, spec: TensorMapSpec): Uint8Array {
  const rank = spec.sizes.length
  const map = new PackedMemory(koffi, TENSOR_MAP_BYTES)
  const sizes = new PackedMemory(koffi, rank * 8)
  spec.sizes.forEach((size, i) => {
    sizes.u64(i * 8, size)
  })
  const strides = new PackedMemory(koffi, Math.max(8, (rank - 1) * 8))
  spec.strides.forEach((stride, i) => {
    strides.u64(i * 8, stride)
  })
  const box = new PackedMemory(koffi, rank * 4)
  const steps = new PackedMemory(koffi, rank * 4)
  spec.box.forEach((edge, i) => {
    box.u32(i * 4, edge)
    steps.u32(i * 4, 1)
  })
  driver.call(
    'cuTensorMapEncodeTiled',
    map.address,
    DATA_TYPE[spec.dtype],
    rank,
    spec.address,
    sizes.address,
    strides.address,
    box.address,
    steps.address,
    0,
    SWIZZLE[spec.swizzle],
    PROMOTION[spec.l2Promotion ?? '128B'],
    0,
  )
  return map.bytes
}
