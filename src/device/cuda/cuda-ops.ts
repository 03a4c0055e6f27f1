// The Ops of a GPU: plain kernels for everything, and fast paths where shapes and types allow, chosen when an operation is
// bound. `plain` binds no fast path: the reference on the device.
import type { DeviceOps } from '../device-ops.js'
import type { CudaKernels } from './kernels.js'
import { fastAttention } from './ops/attention.js'
import { expertOps } from './ops/experts.js'
import { fastExperts } from './ops/experts-fast.js'
import { linearOps } from './ops/linear.js'
import { fastHeadLinear, fastLinear } from './ops/linear-fast.js'
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

/** Fast paths first; each says undefined to what it does not take. */
export function cudaOps(d: CudaKernels): DeviceOps {
  const plain = plainCudaOps(d)
  const ops: DeviceOps = {
    ...plain,
    name: `cuda sm_${d.properties.capability}`,
    attention: a => fastAttention(d, a) ?? plain.attention(a),
    linear: a => fastLinear(d, a) ?? plain.linear(a),
    headLinear: a => fastHeadLinear(d, a) ?? plain.headLinear(a),
    experts: a => fastExperts(d, a) ?? plain.experts(a),
  }
  return Object.freeze(ops)
}
