// The dispatch layout: how many of a rank's tokens go to each member, node and expert, and which token goes where.
// A token counts once for a member and once for a node, however many of its experts lie there; for experts every slot
// counts. Pure function of ids; moves nothing (source of the rules: DeepEP get_dispatch_layout).
import { i32View } from '../device/memory.js'
import type { Operand } from '../device/ops.js'
import { ExpertBufferError } from './errors.js'
import { type ExpertBufferConfig, totalExperts } from './expert-buffer-config.js'

export interface DispatchLayout {
  readonly tokens: number
  /** i32 [members]. */
  readonly tokensPerMember: Int32Array
  /** i32 [nodes]. */
  readonly tokensPerNode: Int32Array
  /** i32 [physical experts]: slots, so a token with the same expert twice counts twice. */
  readonly tokensPerExpert: Int32Array
  /** u8 [tokens, members]: 1 where the token goes. */
  readonly tokenInMember: Uint8Array
}

/** Member that holds each physical expert. */
export function memberOfExpert(expertsOfMember: readonly number[]): Int32Array {
  return Int32Array.from(expertsOfMember.flatMap((count, member) => Array<number>(count).fill(member)))
}

/**
 * @param members from memberOfExpert
 * @param active members that are not dead; slots of dead members count nowhere
 * @throws ExpertBufferError SY_EP_BAD_EXPERT
 */
export function computeLayout(
  config: ExpertBufferConfig,
  members: Int32Array,
  ids: Operand,
  tokens: number,
  active?: readonly boolean[],
): DispatchLayout {
  const { topK, nodeOfMember } = config
  const size = config.expertsOfMember.length
  const experts = totalExperts(config)
  const nodes = nodeOfMember ? Math.max(...nodeOfMember) + 1 : 1
  const tokensPerMember = new Int32Array(size)
  const tokensPerNode = new Int32Array(nodes)
  const tokensPerExpert = new Int32Array(experts)
  const tokenInMember = new Uint8Array(tokens * size)
  const seenNode = new Int32Array(nodes).fill(-1)
  const view = i32View(ids.span)
  for (let t = 0; t < tokens; t++) {
    const at = ids.offset + t * ids.stride
    for (let k = 0; k < topK; k++) {
      const e = view[at + k]!
      if (e === -1) continue
      if (!(e >= 0 && e < experts))
        throw new ExpertBufferError('SY_EP_BAD_EXPERT', { expert: e, token: t, slot: k, experts })
      const m = members[e]!
      if (active && !active[m]) continue
      tokensPerExpert[e] = tokensPerExpert[e]! + 1
      if (tokenInMember[t * size + m]) continue
      tokenInMember[t * size + m] = 1
      tokensPerMember[m] = tokensPerMember[m]! + 1
      const node = nodeOfMember ? nodeOfMember[m]! : 0
      if (seenNode[node] === t) continue
      seenNode[node] = t
      tokensPerNode[node] = tokensPerNode[node]! + 1
    }
  }
  return { tokens, tokensPerMember, tokensPerNode, tokensPerExpert, tokenInMember }
}
