// A rank's tokens on their way: a private copy of ids and weights, and the table of rows where each token goes. Lives as long
// as the handle that was made from it, so that a cached dispatch needs nothing from the caller.
import { f32View, i32View } from '../../../device/memory.js'
import type { Routing } from '../../expert-buffer.js'
import type { DispatchLayout } from '../../layout.js'
import type { RowMeta } from './views.js'

export interface TokenRoutes {
  readonly tokens: number
  readonly topK: number
  /** [tokens, topK] physical experts. */
  readonly ids: Int32Array
  /** [tokens, topK]. */
  readonly weights: Float32Array
  readonly layout: DispatchLayout
}

export function copyRouting(routing: Routing, topK: number, layout: DispatchLayout): TokenRoutes {
  const { tokens } = routing
  const ids = new Int32Array(tokens * topK)
  const weights = new Float32Array(tokens * topK)
  const fromIds = i32View(routing.ids.span)
  const fromWeights = f32View(routing.weights.span)
  for (let t = 0; t < tokens; t++) {
    const i = routing.ids.offset + t * routing.ids.stride
    const w = routing.weights.offset + t * routing.weights.stride
    for (let k = 0; k < topK; k++) {
      ids[t * topK + k] = fromIds[i + k]!
      weights[t * topK + k] = fromWeights[w + k]!
    }
  }
  return { tokens, topK, ids, weights, layout }
}

/**
 * [tokens, members]: row of each token on each member, ascending with the token from `bases[m]` on; -1 where it does not go.
 */
export function rowTable(layout: DispatchLayout, size: number, bases: ArrayLike<number>): Int32Array {
  const table = new Int32Array(layout.tokens * size)
  const next = Int32Array.from(bases)
  for (let i = 0; i < table.length; i++) {
    const m = i % size
    if (layout.tokenInMember[i]) {
      table[i] = next[m]!
      next[m] = next[m]! + 1
    } else table[i] = -1
  }
  return table
}

/** Which member holds an expert, and the first expert that it holds. */
interface ExpertPlaces {
  readonly memberOfExpert: Int32Array
  readonly expertStart: Int32Array
}

/**
 * Writes ids, weights and source of every token into the rows of its members: ids local to the member, -1 and weight 0 for
 * slots that are elsewhere.
 * @param table of rowTable: a member's rows follow each other, so what is nowhere is written first, all at once
 */
export function writeMeta(
  routes: TokenRoutes,
  table: Int32Array,
  metas: readonly RowMeta[],
  { memberOfExpert, expertStart }: ExpertPlaces,
): void {
  const { tokens, topK, ids, weights, layout } = routes
  const size = metas.length
  for (let m = 0; m < size; m++) {
    const rows = layout.tokensPerMember[m]!
    const { ids: toIds, weights: toWeights, sources } = metas[m]!
    let first = true
    for (let t = 0; t < tokens && rows > 0; t++) {
      const row = table[t * size + m]!
      if (row < 0) continue
      sources[row] = t
      if (!first) continue
      first = false
      toIds.fill(-1, row * topK, (row + rows) * topK)
      toWeights.fill(0, row * topK, (row + rows) * topK)
    }
  }
  for (let t = 0; t < tokens; t++) {
    for (let k = 0; k < topK; k++) {
      const e = ids[t * topK + k]!
      if (e < 0) continue
      const m = memberOfExpert[e]!
      const row = table[t * size + m]!
      // Nothing goes to members that are dead.
      if (row < 0) continue
      const { ids: toIds, weights: toWeights } = metas[m]!
      toIds[row * topK + k] = e - expertStart[m]!
      toWeights[row * topK + k] = weights[t * topK + k]!
    }
  }
}
