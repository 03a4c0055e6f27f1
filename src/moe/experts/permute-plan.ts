// The plan of a permutation from standard format (a token's row once, with its top-k expert ids) to expert-contiguous
// rows (a row for each (token, slot), rows of an expert together). A pure function of the ids; moves nothing.
//
// Experts ascend; within an expert rows stand in (token, slot) order; each expert's segment is padded to a multiple of the
// row alignment, experts without rows have none. The layout is the one that DeepGEMM's contiguous grouped GEMM reads.
// The row alignment (rows of a GEMM tile) has nothing to do with the quantisation block (elements that share a scale).
import { hostBuffer, type MemoryLender, type MemorySpan, subspan } from '../../device/memory.js'
import { ExpertLayoutError } from './errors.js'

export interface PermutePlan {
  readonly tokens: number
  readonly topK: number
  readonly experts: number
  readonly rowAlignment: number
  /** (token, slot) pairs with an expert: the rows that are not padding. */
  readonly pairs: number
  /** M_sum: rows of the layout with padding, a multiple of `rowAlignment`. */
  readonly rows: number
  /** Valid rows of an expert on average, rounded up: what a masked GEMM may choose its tiles by. Changes no result. */
  readonly expectedM: number
  /** i32 [experts]: valid rows of each (`masked_m`). */
  readonly counts: Int32Array
  /** i32 [experts + 1]: first row of each segment; the last is `rows`. */
  readonly starts: Int32Array
  /** i32 [rows]: expert of each row, -1 for padding. */
  readonly mIndices: Int32Array
  /** i32 [tokens, topK]: the row of each (token, slot), -1 where there is no expert (`inv_perm`). */
  readonly invPerm: Int32Array
}

/** What a plan is made for. */
export interface PermuteShape {
  readonly topK: number
  readonly experts: number
  readonly rowAlignment: number
}

/** Memory for the lists of a plan; those that kernels read lie in spans. A plan made into it lives until the next one. */
export interface PlanMemory {
  readonly tokens: number
  readonly rows: number
  readonly counts: Int32Array
  readonly starts: Int32Array
  readonly mIndices: Int32Array
  readonly invPerm: Int32Array
  /** The span of `invPerm`. */
  readonly invPermSpan: MemorySpan
}

export function checkAlignment(alignment: number): void {
  if (!Number.isSafeInteger(alignment) || alignment < 1)
    throw new ExpertLayoutError('SY_EXPERTS_BAD_ALIGNMENT', { alignment })
}

/** Rows of the segments of known counts: Σ counts[e] rounded up to the alignment. Exact. */
export function permutedRows(counts: ArrayLike<number>, rowAlignment: number): number {
  checkAlignment(rowAlignment)
  let rows = 0
  for (let e = 0; e < counts.length; e++) rows += Math.ceil(counts[e]! / rowAlignment) * rowAlignment
  return rows
}

/**
 * The most rows that `pairs` (token, slot) pairs can need when their counts are not known: one pair for each of
 * min(experts, pairs) experts, the rest on one. No smaller bound holds for all ids.
 */
export function permutedRowsBound(pairs: number, experts: number, rowAlignment: number): number {
  checkAlignment(rowAlignment)
  const used = Math.min(experts, pairs)
  return used === 0 ? 0 : (used + Math.floor((pairs - used) / rowAlignment)) * rowAlignment
}

/** Memory for plans of at most `tokens` tokens. */
export function lendPlanMemory(lender: MemoryLender, shape: PermuteShape, tokens: number): PlanMemory {
  const pairs = tokens * shape.topK
  const rows = permutedRowsBound(pairs, shape.experts, shape.rowAlignment)
  const invPermSpan = lender.lend(Math.max(1, pairs) * 4, 'inv_perm')
  const span = subspan(invPermSpan, 0, pairs * 4)
  return {
    tokens,
    rows,
    counts: new Int32Array(shape.experts),
    starts: new Int32Array(shape.experts + 1),
    mIndices: new Int32Array(rows),
    invPerm: new Int32Array(hostBuffer(span), span.byteOffset, pairs),
    invPermSpan,
  }
}

/**
 * @param ids i32 [tokens, topK] with `stride` elements between tokens, from element `offset`: local experts, -1 = none.
 * The same expert may stand in several slots of a token; each is a row of its own
 * @param memory where the plan's lists go; left out, they are fresh
 * @throws ExpertLayoutError SY_EXPERTS_BAD_ID, SY_EXPERTS_BAD_ALIGNMENT, SY_EXPERTS_TOO_MANY_ROWS (beyond `memory`)
 */
export function planPermute(
  ids: { readonly data: Int32Array; readonly offset: number; readonly stride: number },
  tokens: number,
  shape: PermuteShape,
  memory?: PlanMemory,
): PermutePlan {
  const { topK, experts, rowAlignment } = shape
  checkAlignment(rowAlignment)
  if (memory && tokens > memory.tokens)
    throw new ExpertLayoutError('SY_EXPERTS_TOO_MANY_ROWS', { rows: tokens, what: 'tokens', limit: memory.tokens })
  const counts = memory ? memory.counts.fill(0) : new Int32Array(experts)
  let pairs = 0
  for (let t = 0; t < tokens; t++) {
    for (let s = 0; s < topK; s++) {
      const expert = ids.data[ids.offset + t * ids.stride + s]!
      if (expert === -1) continue
      if (!(expert >= 0 && expert < experts))
        throw new ExpertLayoutError('SY_EXPERTS_BAD_ID', { token: t, slot: s, expert, experts })
      counts[expert] = counts[expert]! + 1
      pairs++
    }
  }
  const rows = permutedRows(counts, rowAlignment)
  const starts = memory ? memory.starts : new Int32Array(experts + 1)
  const mIndices = memory ? memory.mIndices.subarray(0, rows) : new Int32Array(rows)
  const invPerm = memory ? memory.invPerm.subarray(0, tokens * topK) : new Int32Array(tokens * topK)
  mIndices.fill(-1)
  let start = 0
  for (let e = 0; e < experts; e++) {
    starts[e] = start
    mIndices.fill(e, start, start + counts[e]!)
    start += Math.ceil(counts[e]! / rowAlignment) * rowAlignment
  }
  starts[experts] = start
  place(ids, tokens, topK, starts, invPerm)
  const expectedM = Math.ceil(pairs / experts)
  const lists = { counts, starts, mIndices, invPerm }
  return Object.freeze({ tokens, topK, experts, rowAlignment, pairs, rows, expectedM, ...lists })
}

/** Gives every pair the next row of its expert. `starts` serves as the cursors and is put back afterwards. */
function place(
  ids: { readonly data: Int32Array; readonly offset: number; readonly stride: number },
  tokens: number,
  topK: number,
  starts: Int32Array,
  invPerm: Int32Array,
): void {
  for (let t = 0; t < tokens; t++) {
    for (let s = 0; s < topK; s++) {
      const expert = ids.data[ids.offset + t * ids.stride + s]!
      if (expert === -1) {
        invPerm[t * topK + s] = -1
        continue
      }
      invPerm[t * topK + s] = starts[expert]!
      starts[expert] = starts[expert]! + 1
    }
  }
  // Back again: a pair takes off what it added.
  for (let t = 0; t < tokens; t++) {
    for (let s = 0; s < topK; s++) {
      const expert = ids.data[ids.offset + t * ids.stride + s]!
      if (expert !== -1) starts[expert] = starts[expert]! - 1
    }
  }
}
