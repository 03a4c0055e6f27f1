// The routed experts over the contiguous layout, in the open: permute → grouped GEMM → gated activation → grouped GEMM →
// unpermute with weights. Same arguments and same bits as the fused Ops.experts, which reads rows through an index and
// needs no permutation; this is the form that devices with a contiguous grouped GEMM run, and the one to read.
import type { WireKernels } from '../../comm/wire/kernels.js'
import { i32View, type MemoryLender, type MemorySpan } from '../../device/memory.js'
import type { GatedActivation, Operand, Ops, PackedMatrix, ParameterVector } from '../../device/ops.js'
import { bindContiguousGemm, forEachSegment, rowsFrom, SegmentKernels } from './grouped-gemm.js'
import { bindPermute, bindUnpermute } from './permute.js'
import { lendPlanMemory, type PermutePlan, planPermute } from './permute-plan.js'

/** The experts a rank holds. gateUp is [2·inter, hidden] each, gate rows first; down is [hidden, inter]. */
export interface HeldExperts {
  readonly gateUp: PackedMatrix
  readonly down: PackedMatrix
  readonly gateUpBias?: ParameterVector
  readonly downBias?: ParameterVector
  readonly activation: GatedActivation
}

/** Where kernels and memory come from. The wire kernels belong to the same device as the operations. */
export interface ExpertKit {
  readonly ops: Ops
  readonly wire: Pick<WireKernels, 'weightedSum'>
  readonly lender: MemoryLender
}

export interface ContiguousArguments {
  /** [tokens, hidden] */
  readonly x: Operand
  /** i32 [tokens, topK]: local experts, -1 = none. */
  readonly ids: Operand
  /** f32 [tokens, topK] */
  readonly weights: Operand
  /** [tokens, hidden] */
  readonly out: Operand
  readonly topK: number
  /** Tokens at most. */
  readonly tokens: number
  /** Rows that each expert's segment is padded to a multiple of: 1 for none. Changes no bit of the result. */
  readonly rowAlignment: number
  readonly experts: HeldExperts
}

/** f32 rows without gaps. */
const dense = (span: MemorySpan, width: number): Operand => ({ span, offset: 0, stride: width })

export const gemmOf = (weight: PackedMatrix, bias: ParameterVector | undefined) =>
  bias ? { weight, bias } : { weight }

/**
 * Lends the memory between the steps for the worst case and binds them.
 * @returns a function of the number of tokens; it gives the plan it went by, alive until the next call
 * @throws ExpertLayoutError SY_EXPERTS_BAD_ALIGNMENT; when it runs, SY_EXPERTS_BAD_ID and SY_EXPERTS_TOO_MANY_ROWS
 */
export function bindContiguousExperts(kit: ExpertKit, a: ContiguousArguments): (tokens: number) => PermutePlan {
  const { ops, lender } = kit
  const { gateUp, down, gateUpBias, downBias, activation } = a.experts
  const [hidden, inter] = [gateUp.k, down.k]
  const shape = { topK: a.topK, experts: gateUp.count, rowAlignment: a.rowAlignment }
  const memory = lendPlanMemory(lender, shape, a.tokens)
  const { rows } = memory
  const lend = (width: number, purpose: string) => dense(lender.lend(rows * width * 4, purpose), width)
  const xs = lend(hidden, 'rows by expert')
  const wide = lend(2 * inter, 'gate and up of rows by expert')
  const narrow = lend(inter, 'activations of rows by expert')
  const ys = lend(hidden, 'results of rows by expert')

  const ids = { data: i32View(a.ids.span), offset: a.ids.offset, stride: a.ids.stride }
  const permute = bindPermute(ops, { x: a.x, rows: xs, width: hidden, topK: a.topK, memory })
  const common = { rows, rowAlignment: a.rowAlignment }
  const first = bindContiguousGemm(ops, { ...gemmOf(gateUp, gateUpBias), ...common, x: xs, out: wide })
  const gates = new SegmentKernels(rows, a.rowAlignment, (_, row) =>
    ops.gatedActivation({ out: rowsFrom(narrow, row), x: rowsFrom(wide, row), width: inter, activation }),
  )
  const gate = (_: number, row: number, count: number) => gates.run(0, row, count)
  const second = bindContiguousGemm(ops, { ...gemmOf(down, downBias), ...common, x: narrow, out: ys })
  const unpermute = bindUnpermute(kit.wire, { ...a, rows: ys, hidden })
  return tokens => {
    const plan = planPermute(ids, tokens, shape, memory)
    permute(plan)
    first(plan.mIndices, plan.rows)
    forEachSegment(plan.mIndices, plan.rows, gate)
    second(plan.mIndices, plan.rows)
    unpermute(plan)
    return plan
  }
}
