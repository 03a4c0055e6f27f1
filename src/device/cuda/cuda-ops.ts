// The Ops of a GPU: plain kernels for everything, and fast paths where shapes and types allow, chosen when an operation is
// bound. `plain` binds no fast path: the reference on the device.
import type { DeviceOps } from '../device-ops.js'
import type { CudaKernels } from './kernels.js'
import { expertOps } from './ops/experts.js'
import { linearOps } from './ops/linear.js'
import { normOps } from './ops/norm.js'
import { plainAttentionOps } from './ops/plain-attention.js'
import { ropeOps } from './ops/rope.js'
import { routerOps } from './ops/router.js'
import { rowOps } from './ops/rows.js'
import { sampleOps } from './ops/sample.js'

/** Every operation by its plain kernel. */
export const plainCudaOps = (d: CudaKernels): DeviceOps =>
  Object.freeze({
    name: `cuda sm_${d.properties.capability}, plain`,
    ...rowOps(d),
    ...normOps(d),
    ...linearOps(d),
    ...ropeOps(d),
    ...plainAttentionOps(d),
    ...routerOps(d),
    ...expertOps(d),
    ...sampleOps(d),
  })

export type CudaOpsFactory = (d: CudaKernels) => DeviceOps
