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

/**
 * Writes ids, weights and source of every token into the rows of its members: ids local to the member, -1 and weight 0 for
 * slots that are elsewhere.
 * @param expertStart [members + 1] first physical expert of each member
 */
export function writeMeta(
  routes: TokenRoutes,
  table: Int32Array,
  metas: readonly RowMeta[],
  expertStart: ArrayLike<number>,
): void {
  const { tokens, topK, ids, weights } = routes
  const size = metas.length
  for (let m = 0; m < size; m++) {
    if (routes.layout.tokensPerMember[m] === 0) continue
    const { ids: toIds, weights: toWeights, sources } = metas[m]!
    const from = expertStart[m]!
    const end = expertStart[m + 1]!
    for (let t = 0; t < tokens; t++) {
      const row = table[t * size + m]!
      if (row < 0) continue
      sources[row] = t
      for (let k = 0; k < topK; k++) {
        const e = ids[t * topK + k]!
        const here = e >= from && e < end
        toIds[row * topK + k] = here ? e - from : -1
        toWeights[row * topK + k] = here ? weights[t * topK + k]! : 0
      }
    }
  }
}
