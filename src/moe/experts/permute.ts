// Carrying a permutation out: rows of standard format to their places in the expert-contiguous layout, and back with the
// weights of the slots. Bound once; a step passes a plan. Padding rows are neither written nor read.

import { wireFormat } from '../../comm/wire/format.js'
import type { Rows, WireKernels } from '../../comm/wire/kernels.js'
import { operandRows } from '../../comm/wire/kernels.js'
import { f32View } from '../../device/memory.js'
import type { Kernel, Operand, Ops } from '../../device/ops.js'
import { ExpertLayoutError } from './errors.js'
import type { PermutePlan, PlanMemory } from './permute-plan.js'

/**
 * Copies x[t] to rows[inv_perm[t, s]] for every slot s that has an expert.
 *
 * A row is `width` words of 4 bytes, whatever they mean: f32 elements, or a quantised row with its scales beside it.
 * @param a.x [tokens, width], `a.rows` [M_sum, width]
 * @returns a function of a plan that was made into `a.memory`
 */
export function bindPermute(
  ops: Ops,
  a: { x: Operand; rows: Operand; width: number; topK: number; memory: PlanMemory },
): (plan: PermutePlan) => void {
  // A store by slot is a scatter: one pass a slot, all rows of it in one kernel call.
  const passes: Kernel[] = Array.from({ length: a.topK }, (_, s) =>
    ops.storeKv({
      kv: a.rows,
      x: a.x,
      slots: { span: a.memory.invPermSpan, offset: s, stride: a.topK },
      width: a.width,
    }),
  )
  return plan => {
    for (const pass of passes) pass(plan.tokens)
  }
}

/**
 * out[t] = Σ over slots s in ascending order of weights[t, s] · rows[inv_perm[t, s]]; slots without an expert add nothing.
 * Rounds as `Ops.experts` of the same device does, so that the two give the same bits.
 *
 * @param a.rows [`a.limit`, hidden], `a.out` [tokens, hidden], `a.weights` f32 [tokens, topK], any stride
 * @returns a function of a plan
 */
export function bindUnpermute(
  wire: Pick<WireKernels, 'weightedSum'>,
  a: { rows: Operand; out: Operand; weights: Operand; hidden: number; topK: number; tokens: number },
): (plan: Pick<PermutePlan, 'tokens' | 'invPerm'>) => void {
  const format = wireFormat('f32', a.hidden)
  const [from, to]: Rows[] = [operandRows(a.rows, format), operandRows(a.out, format)]
  const given = f32View(a.weights.span)
  const weights = new Float32Array(a.tokens * a.topK)
  return ({ tokens, invPerm }) => {
    if (tokens > a.tokens)
      throw new ExpertLayoutError('SY_EXPERTS_TOO_MANY_ROWS', { rows: tokens, what: 'tokens', limit: a.tokens })
    for (let t = 0; t < tokens; t++) {
      const at = a.weights.offset + t * a.weights.stride
      for (let s = 0; s < a.topK; s++) weights[t * a.topK + s] = given[at + s]!
    }
    wire.weightedSum({ from: from!, to: to!, n: tokens, topK: a.topK, index: invPerm, weights })
  }
}
