// Plan → rows: what each row symbol of a program stands for on one rank in one step. A pure function of the plan.
import type { ParallelSizes, RankCoordinates } from '../parallel/index.js'
import type { RowValues } from '../program/index.js'
import type { StepPlan } from './step-plan.js'

/** Piece `index` of `count` almost equal pieces of `rows` rows; the first ones are one longer. */
export const pieceOf = (rows: number, index: number, count: number): number =>
  Math.floor(rows / count) + (index < rows % count ? 1 : 0)

export function stepRows(
  plan: Pick<StepPlan, 'numTokens' | 'numLogitRows' | 'dpPadding'>,
  sizes: ParallelSizes,
  me: RankCoordinates,
): RowValues {
  const longest = Math.max(...plan.numTokens)
  const dp = plan.numTokens.map(n => (plan.dpPadding === 'MAX_LEN' ? longest : n))
  const own = dp[me.attnDp]!
  const members = Array.from({ length: sizes.attnTp }, (_, m) => m)
  const attnTp = members.map(m => pieceOf(own, m, sizes.attnTp))
  const tp = dp.flatMap(rows => members.map(m => pieceOf(rows, m, sizes.attnTp)))
  return {
    rows: {
      tokens: plan.numTokens[me.attnDp]!,
      padded: own,
      gathered: dp.reduce((a, b) => a + b, 0),
      slice: attnTp[me.attnTp]!,
      received: 0,
      logitRows: plan.numLogitRows[me.attnDp]!,
      gatheredLogits: plan.numLogitRows.reduce((a, b) => a + b, 0),
    },
    counts: { dp, attnTp, tp, logits: plan.numLogitRows },
    member: { dp: me.attnDp, attnTp: me.attnTp, tp: me.rank, logits: me.attnDp },
  }
}
