// The GPU of the tests: operations that wait for their result, since the suites look at it at once.

import { type CudaDevice, createCudaDevice } from '../../src/device/cuda/device.js'
import { PinnedLender } from '../../src/device/cuda/host-memory.js'
import type { DeviceOps } from '../../src/device/device-ops.js'
import type { Kernel } from '../../src/device/ops.js'
import { TEST_GPU } from './gpu.js'

export const openDevice = (options: { plain?: boolean } = {}): CudaDevice =>
  createCudaDevice({ ordinal: TEST_GPU, ...options })

/** `ops`, with kernels that return when the device has finished, and throw what it met. */
export function waiting(device: CudaDevice): DeviceOps {
  const bound = Object.entries(device.ops).map(([name, value]) => {
    if (typeof value !== 'function') return [name, value]
    const bind = value as (a: unknown) => Kernel
    return [
      name,
      (a: unknown): Kernel => {
        const kernel = bind(a)
        return rows => {
          kernel(rows)
          device.settle()
        }
      },
    ]
  })
  return Object.fromEntries(bound) as DeviceOps
}

/** What suites run against: operands in host memory that the GPU reaches. */
export const implementationOf = (device: CudaDevice) => ({
  ops: waiting(device),
  packer: device.packer,
  lender: new PinnedLender(),
  packed: 'rows' as const,
  leavesOut: ['sumAddRmsNorm'] as const,
})
