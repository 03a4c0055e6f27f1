// Moves of rows between layouts, emitted into a program. Which collective carries a move is picked here, once, from the
// sizes and the padding mode (source of the choices: SGLang layers/dp_attention.py and layers/layer_boundary).
//
// Only the chain {ATTN_DP, ATTN_TP} - {ATTN_DP} - {} exists: rows are cut over attention-DP first. An attention-TP slice
// of rows that are whole over attention-DP is the same chain when there is one DP rank.
import type { ParallelSizes } from '../../parallel/index.js'
import type { CountsSymbol, ProgramBuilder, ProgramGroup, Ref, RowSymbol } from '../../program/index.js'
import { BoundaryError } from './errors.js'
import { type Layout, normalize, pendingSum, type SumGroup, sameLayout } from './layout.js'

export type DpPaddingMode = 'MAX_LEN' | 'SUM_LEN'

/** How rows of all DP ranks come together. `all_reduce` zero-fills and sums, and can complete an attention-TP sum on the way. */
export type GatherKind = 'all_gather' | 'all_gatherv' | 'all_reduce'

/** What a rank's program is built for. */
export interface MoveContext {
  readonly builder: ProgramBuilder
  readonly sizes: ParallelSizes
  readonly padding: DpPaddingMode
  /** This rank's index in its attention-TP group: only member 0 contributes rows that are equal on all members. */
  readonly attnTpIndex: number
  /** How rows gather under SUM_LEN. Zeros and an all-reduce serve communicators without an all-gather-v. */
  readonly sumLenGather: 'all_gatherv' | 'all_reduce'
  /** Nothing is fused: the reference that fused programs are compared with. */
  readonly unfused?: boolean
}

/** Rows in a layout, and the group over which they must still be summed. */
export interface Placed {
  readonly value: Ref
  readonly layout: Layout
  readonly owes: SumGroup | null
}

/** MAX_LEN: equal rows, all-gather. SUM_LEN: as the context says. */
export const gatherKind = (ctx: Pick<MoveContext, 'padding' | 'sumLenGather'>): GatherKind =>
  ctx.padding === 'MAX_LEN' ? 'all_gather' : ctx.sumLenGather

/** The row symbol of a buffer in a layout. */
export function rowsIn(sizes: ParallelSizes, layout: Layout): RowSymbol {
  const axes = normalize(sizes, layout)
  if (axes.includes('ATTN_TP')) return 'slice'
  return axes.includes('ATTN_DP') ? 'padded' : 'gathered'
}

/**
 * Brings rows into layout `to`, complete.
 * @throws BoundaryError when no chain of moves is defined
 */
export function moveRows(ctx: MoveContext, from: Placed, to: Layout, name: string): Ref {
  const { sizes } = ctx
  const [source, target] = [normalize(sizes, from.layout), normalize(sizes, to)]
  const owes = pendingSum(sizes, from.owes)
  const depth = (layout: Layout) => chainDepth(sizes, layout, from, to)
  if (owes === null) return walk(ctx, from.value, depth(source), depth(target), name)
  if (owes === 'ATTN_TP' && sameLayout(source, normalize(sizes, ['ATTN_DP']))) {
    return completeAttnTp(ctx, from.value, depth(target), name)
  }
  if ((owes === 'TP' || owes === 'MOE_OUTPUT') && source.length === 0) {
    return completeTp(ctx, from.value, depth(target), name)
  }
  throw undefinedMove(from, to)
}

/** One reduction that brings home a whole attention-DP rank's rows of an owed sum. */
export interface PlainReduction {
  readonly group: ProgramGroup
  /** Own rows among those that members publish; null: all of them. */
  readonly counts: CountsSymbol | null
}

/** Members of an attention-TP group up to which each sums all rows of its attention-DP rank instead of a slice. */
const SUM_WHOLE_UP_TO = 2

/**
 * The reduction that a norm can take its rows from, row by row, or null where there is none or it is not plain.
 *
 * Over attention-DP and attention-TP together a member can sum all rows of its attention-DP rank: no gather of slices follows,
 * but every member of its group makes the same sums. For two members that is less than the gather; for more it is not
 * plain, and each sums a slice.
 */
export function plainReduction({ sizes }: MoveContext, from: Placed): PlainReduction | null {
  const owes = pendingSum(sizes, from.owes)
  const source = normalize(sizes, from.layout)
  if (owes === 'ATTN_TP' && sameLayout(source, normalize(sizes, ['ATTN_DP']))) return { group: 'attnTp', counts: null }
  if ((owes !== 'TP' && owes !== 'MOE_OUTPUT') || source.length > 0) return null
  if (sizes.attnDp === 1) return { group: 'tp', counts: null }
  if (sizes.attnTp === 1) return { group: 'tp', counts: 'tp' }
  return sizes.attnTp <= SUM_WHOLE_UP_TO ? { group: 'tp', counts: 'dp' } : null
}

/**
 * A buffer for an attention-DP rank's rows on their way to layout `to`. Where the way is one all-gather, the rows lie where
 * the other ranks read them, so that the gather copies nothing in.
 */
export function departure(ctx: MoveContext, name: string, width: number, to: Layout): Ref {
  const { builder, sizes, unfused } = ctx
  const gathered = sizes.attnDp > 1 && normalize(sizes, to).length === 0 && gatherKind(ctx) !== 'all_reduce'
  return gathered && !unfused ? builder.exchange(name, width, 'attnDp') : builder.arena(name, width)
}

/** 0: all rows; 1: the DP rank's; 2: an attention-TP slice of them. */
function chainDepth(sizes: ParallelSizes, layout: Layout, from: Placed, to: Layout): 0 | 1 | 2 {
  if (layout.includes('ATTN_CP')) throw undefinedMove(from, to)
  if (layout.includes('ATTN_TP')) {
    if (sizes.attnDp > 1 && !layout.includes('ATTN_DP')) throw undefinedMove(from, to)
    return 2
  }
  if (layout.includes('ATTN_DP')) return 1
  // Over one DP rank, "all rows" and "the DP rank's rows" are the same place.
  return 0
}

function undefinedMove(from: Placed, to: Layout): BoundaryError {
  const show = (layout: Layout) => (layout.length === 0 ? 'nothing' : layout.join('+'))
  return new BoundaryError('SY_BOUNDARY_UNDEFINED', {
    from: show(from.layout),
    to: show(to),
    owed: from.owes ?? 'nothing',
  })
}

const levelRows = (level: 0 | 1 | 2): RowSymbol => (level === 2 ? 'slice' : level === 1 ? 'padded' : 'gathered')

function walk(ctx: MoveContext, value: Ref, from: 0 | 1 | 2, to: 0 | 1 | 2, name: string): Ref {
  let at = value
  let level = from
  while (level > to) {
    at = level === 2 ? gatherSlices(ctx, at, name) : gatherDp(ctx, at, name)
    level = level === 2 ? 1 : 0
  }
  while (level < to) {
    at = level === 0 ? cut(ctx, at, 'dp', 1, name) : cut(ctx, at, 'attnTp', 2, name)
    level = level === 0 ? 1 : 2
  }
  return at
}

const bufferAt = (ctx: MoveContext, name: string, level: 0 | 1 | 2, width: number): Ref =>
  ctx.builder.arena(`${name}.${levelRows(level)}`, width, levelRows(level))

function gatherSlices(ctx: MoveContext, x: Ref, name: string): Ref {
  if (ctx.sizes.attnTp === 1) return x
  const out = bufferAt(ctx, name, 1, x.width)
  ctx.builder.emit(
    'all_gather',
    { out, x, group: 'attnTp', counts: 'attnTp' },
    { rows: 'slice', label: `${name}: slices of the attention-TP group` },
  )
  return out
}

function gatherDp(ctx: MoveContext, x: Ref, name: string): Ref {
  if (ctx.sizes.attnDp === 1) return x
  const kind = gatherKind(ctx)
  if (kind === 'all_reduce') return gatherByAllReduce(ctx, x, ctx.attnTpIndex === 0, name)
  const out = bufferAt(ctx, name, 0, x.width)
  const label = kind === 'all_gather' ? 'rows of all DP ranks, padded to the longest' : 'rows of all DP ranks'
  ctx.builder.emit(
    'all_gather',
    { out, x, group: 'attnDp', counts: 'dp' },
    { rows: 'padded', label: `${name}: ${label}` },
  )
  return out
}

/** Own rows among zeros, summed over all ranks. With `contribute` on every member it completes an attention-TP sum. */
function gatherByAllReduce(ctx: MoveContext, x: Ref, contribute: boolean, name: string): Ref {
  const out = bufferAt(ctx, name, 0, x.width)
  ctx.builder.emit('place_rows', { out, x, contribute }, { rows: 'gathered', label: `${name}: own rows among zeros` })
  ctx.builder.emit(
    'all_reduce',
    { x: out, group: 'tp' },
    { rows: 'gathered', label: `${name}: rows of all DP ranks, by sum` },
  )
  return out
}

function cut(ctx: MoveContext, x: Ref, counts: 'dp' | 'attnTp', level: 1 | 2, name: string): Ref {
  const count = counts === 'dp' ? ctx.sizes.attnDp : ctx.sizes.attnTp
  if (count === 1) return x
  const out = bufferAt(ctx, name, level, x.width)
  ctx.builder.emit('cut_rows', { out, x, counts }, { rows: levelRows(level), label: `${name}: own rows` })
  return out
}

/** A partial sum over attention-TP at {ATTN_DP}. */
function completeAttnTp(ctx: MoveContext, value: Ref, to: 0 | 1 | 2, name: string): Ref {
  const { builder, sizes } = ctx
  if (to === 2) {
    const out = bufferAt(ctx, name, 2, value.width)
    const args = { out, x: value, group: 'attnTp', counts: 'attnTp' } as const
    builder.emit('reduce_scatter', args, { rows: 'slice', label: `${name}: sum over attention-TP, own slice` })
    return out
  }
  if (to === 0 && sizes.attnDp > 1 && gatherKind(ctx) === 'all_reduce') {
    return gatherByAllReduce(ctx, value, true, name)
  }
  builder.emit('all_reduce', { x: value, group: 'attnTp' }, { rows: 'padded', label: `${name}: sum over attention-TP` })
  return walk(ctx, value, 1, to, name)
}

/** A partial sum over all ranks of rows that every rank has. */
function completeTp(ctx: MoveContext, value: Ref, to: 0 | 1 | 2, name: string): Ref {
  const { builder, sizes } = ctx
  if (to === 0) {
    builder.emit('all_reduce', { x: value, group: 'tp' }, { rows: 'gathered', label: `${name}: sum over all ranks` })
    return value
  }
  const level = sizes.attnTp === 1 ? 1 : 2
  const out = bufferAt(ctx, name, level, value.width)
  builder.emit(
    'reduce_scatter',
    { out, x: value, group: 'tp', counts: 'tp' },
    { rows: levelRows(level), label: `${name}: sum over all ranks, own rows` },
  )
  return level === 1 && to === 2 ? out : walk(ctx, out, level, to, name)
}
