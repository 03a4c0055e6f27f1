// Choice of experts, a warp a row.
import { Unreachable } from '../../../config/errors.js'
import type { DeviceOps } from '../../device-ops.js'
import type { CudaKernels } from '../kernels.js'
import { ceilDiv, field, kernelOf, vectorAddress } from './operands.js'

const SCORING = { softmax: 0, sigmoid: 1, softmax_after_topk: 2 } as const
/** What a warp holds: 16 experts a lane, a slot and a group a lane. */
const MOST = { experts: 512, topK: 32, groups: 32 } as const
const WARPS = 4

export const routerOps = (d: CudaKernels): Pick<DeviceOps, 'router'> => ({
  router({ ids, weights, logits, bias, spec, validRows, fake }) {
    const { experts, topK, groups } = spec
    if (experts > MOST.experts || topK > MOST.topK || groups > MOST.groups || topK > experts)
      throw new Unreachable(`the router kernel chooses from ${MOST.experts} experts and ${MOST.groups} groups at most`)
    const [i, w, l] = [field(d, ids, topK), field(d, weights, topK), field(d, logits, experts)]
    const positions = fake && field(d, fake.positions)
    const perLane = [1, 2, 4, 8, 16].find(n => n * 32 >= experts)!
    const args = d
      .kernel('router.cu', `router_${perLane}`)
      .bind(
        [
          ...(['u64', 'u64', 'u64', 'u64', 'u64', 'u64', 'i32', 'i32', 'i32', 'i32', 'i32', 'i32', 'i32'] as const),
          ...(['i32', 'f32', 'i32', 'u64', 'u64', 'u64', 'u64'] as const),
        ],
        [
          ...[i.address, w.address, l.address, vectorAddress(d, bias, experts)],
          ...[validRows ? d.address(validRows) : 0, positions?.address ?? 0],
          ...[0, experts, topK, SCORING[spec.scoring], groups, spec.topGroups, spec.groupScore === 'top2' ? 1 : 0],
          ...[spec.normalize ? 1 : 0, spec.scale, fake?.salt ?? -1],
          ...[i.stride, w.stride, l.stride, positions?.stride ?? 0],
        ],
        { programmatic: true },
      )
    return kernelOf([i, w, l, ...(positions ? [positions] : [])], rows => {
      args.set(6, rows)
      args.launch([ceilDiv(rows, WARPS), 1, 1], 32 * WARPS)
    })
  },
})
