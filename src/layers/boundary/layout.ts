// How the rows of a hidden state lie over ranks: the set of token axes they are sharded over, and the group over which
// the value is still an unfinished sum (source of the algebra: SGLang layers/layer_boundary).
import type { ParallelSizes } from '../../parallel/index.js'

/** Axes that rows can be sharded over. */
export type TokenAxis = 'ATTN_DP' | 'ATTN_CP' | 'ATTN_TP'

/** Axes of size 1 never appear: over one rank, sharded and whole are the same. The empty layout = every rank has all rows. */
export type Layout = readonly TokenAxis[]

/** The group over which a value is an unfinished sum, or null when it is complete. */
export type SumGroup = 'ATTN_TP' | 'ATTN_CP' | 'TP' | 'MOE_OUTPUT'

const axisSize = (sizes: ParallelSizes, axis: TokenAxis): number =>
  axis === 'ATTN_DP' ? sizes.attnDp : axis === 'ATTN_CP' ? sizes.attnCp : sizes.attnTp

const sumGroupSize = (sizes: ParallelSizes, group: SumGroup): number => {
  if (group === 'ATTN_TP') return sizes.attnTp
  if (group === 'ATTN_CP') return sizes.attnCp
  return group === 'TP' ? sizes.tp : sizes.ep * sizes.moeTp
}

/** Drops axes of size 1 and puts the rest in a fixed order. */
export const normalize = (sizes: ParallelSizes, layout: Layout): Layout =>
  (['ATTN_DP', 'ATTN_CP', 'ATTN_TP'] as const).filter(axis => layout.includes(axis) && axisSize(sizes, axis) > 1)

/** A sum over one member is complete. */
export const pendingSum = (sizes: ParallelSizes, group: SumGroup | null): SumGroup | null =>
  group !== null && sumGroupSize(sizes, group) > 1 ? group : null

export const sameLayout = (a: Layout, b: Layout): boolean => a.length === b.length && a.every(axis => b.includes(axis))
