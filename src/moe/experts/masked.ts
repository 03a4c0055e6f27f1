// The routed experts over the masked layout: a block of `capacity` rows for each expert, of which the first masked_m are
// valid. It is what a low-latency dispatch leads to; no row moves, and no count is needed to know where a row lies.
// Results are rows of (expert, place), unweighted: weights are applied by the combine.
import type { MemoryLender } from '../../device/memory.js'
import type { Operand, Ops } from '../../device/ops.js'
import { gemmOf, type HeldExperts } from './contiguous.js'
import { bindMaskedGemm, rowsFrom, runMasked } from './grouped-gemm.js'

/**
 * Batched format from slots: out[e, j] = x[slotOfRow[e, j]] for j < masked_m[e].
 * @param a.x [slots, width], `a.slotOfRow` i32 [experts, capacity] without gaps, `a.out` [experts, capacity, width]
 */
export function bindFillBatched(
  ops: Ops,
  a: { x: Operand; slotOfRow: Operand; out: Operand; width: number; experts: number; capacity: number },
): (maskedM: Int32Array) => void {
  const kernels = Array.from({ length: a.experts }, (_, e) =>
    ops.gatherRows({
      out: rowsFrom(a.out, e * a.capacity),
      x: a.x,
      index: { span: a.slotOfRow.span, offset: a.slotOfRow.offset + e * a.capacity, stride: 1 },
      width: a.width,
    }),
  )
  return maskedM => runMasked(kernels, maskedM, a.capacity)
}

export interface MaskedArguments {
  /** [experts, capacity, hidden]: row j of expert e is row e · capacity + j. */
  readonly x: Operand
  /** [experts, capacity, hidden]; may be `x`. */
  readonly out: Operand
  /** Rows of an expert at most. */
  readonly capacity: number
  readonly experts: HeldExperts
}

/**
 * out[e, j] = down(act(gateUp(x[e, j]))) of expert e, for j < masked_m[e]; other rows stay as they are.
 * @param kit.lender of the rows between the two GEMMs: experts · capacity · 3 inter numbers
 * @returns a function of `masked_m`, i32 [experts]. @throws ExpertLayoutError SY_EXPERTS_TOO_MANY_ROWS when it runs
 */
export function bindMaskedExperts(
  kit: { readonly ops: Ops; readonly lender: MemoryLender },
  a: MaskedArguments,
): (maskedM: Int32Array) => void {
  const { ops, lender } = kit
  const { gateUp, down, gateUpBias, downBias, activation } = a.experts
  const { capacity } = a
  const inter = down.k
  const rows = gateUp.count * capacity
  const lend = (width: number, purpose: string): Operand => ({
    span: lender.lend(rows * width * 4, purpose),
    offset: 0,
    stride: width,
  })
  const wide = lend(2 * inter, 'gate and up, batched')
  const narrow = lend(inter, 'activations, batched')
  const first = bindMaskedGemm(ops, { ...gemmOf(gateUp, gateUpBias), x: a.x, out: wide, capacity })
  const gates = Array.from({ length: gateUp.count }, (_, e) => {
    const [out, x] = [rowsFrom(narrow, e * capacity), rowsFrom(wide, e * capacity)]
    return ops.gatedActivation({ out, x, width: inter, activation })
  })
  const second = bindMaskedGemm(ops, { ...gemmOf(down, downBias), x: narrow, out: a.out, capacity })
  return maskedM => {
    first(maskedM)
    runMasked(gates, maskedM, capacity)
    second(maskedM)
  }
}
