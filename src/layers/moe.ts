// The mixture-of-experts feed-forward.
//
// Each rank routes its own tokens, which fixes the replica of every expert once, where the token lives: all ranks then
// see the same choice. Without an all-to-all backend, hidden rows, physical expert ids and weights travel side by side in
// one gather; every rank computes the experts it holds on all tokens, and the sum over ranks is owed to the boundary.
// With one, rows go only to the ranks of their experts, and the sums come back complete.
import type { MoeFfnSpec } from '../formats/model-spec.js'
import type { WeightPiece } from '../formats/weight-spec.js'
import { columns, type DispatchMode, type Ref, type RowSymbol } from '../program/index.js'
import { type Boundary, departure, moveRows, type Placed, rowsIn } from './boundary/index.js'
import { cut, elementsOf, joined, type LayerContext, rowsOf, type Shard, stacked, WHOLE } from './context.js'
import { gatedMlp, type MlpNames } from './mlp.js'

export interface MoeNames {
  /** Router linear. */
  readonly router: string
  readonly correctionBias: string
  /** Pieces of rows [from, from + count) of an expert's intermediate width. */
  readonly expert: (expert: number, width: ExpertWidth) => ExpertPieces
  readonly shared: MlpNames
  readonly sharedGate: string
}

/** The cut of an expert that a rank holds. */
export interface ExpertWidth {
  readonly experts: number
  readonly hidden: number
  /** The whole intermediate width. */
  readonly total: number
  readonly from: number
  readonly count: number
  /** This rank adds the down bias: exactly one of the ranks that share an expert does. */
  readonly withDownBias: boolean
}

/** gateUp: [2·count, hidden], gate rows first; down: [hidden, count]. Bias pieces are empty for experts without. */
export interface ExpertPieces {
  readonly gateUp: readonly WeightPiece[]
  readonly down: readonly WeightPiece[]
  readonly gateUpBias: readonly WeightPiece[]
  readonly downBias: readonly WeightPiece[]
}

/** Experts stored one by one under three names. */
export const separateExperts =
  (names: (expert: number) => MlpNames) =>
  (expert: number, { hidden, total, from, count }: ExpertWidth): ExpertPieces => {
    const { gate, up, down } = names(expert)
    const shape = [total, hidden] as const
    return {
      gateUp: [rowsOf(`${gate}.weight`, shape, from, count), rowsOf(`${up}.weight`, shape, from, count)],
      down: [{ ...rowsOf(`${down}.weight`, [hidden, total]), columns: { from, count } }],
      gateUpBias: [],
      downBias: [],
    }
  }

/** Routed plus shared experts of the rows the boundary holds. */
export function moeFeedForward(
  ctx: LayerContext,
  spec: MoeFfnSpec,
  names: MoeNames,
  boundary: Boundary,
  norm: string,
): Placed {
  const { builder: b, hidden, moves } = ctx
  const { topK } = spec.router
  // With whole attention on every rank, an all-to-all takes rows from where they are.
  if (moves.sizes.tp === 1 || (ctx.dispatch !== 'none' && moves.sizes.attnTp === 1 && ctx.ownExperts))
    return localFeedForward(ctx, spec, names, boundary, norm)
  // Ids travel as bits beside the rows, so their gather must copy and never add.
  const copying = { ...moves, sumLenGather: 'all_gatherv' as const }
  const travelling = departure(copying, 'moe_in', hidden + 2 * topK, ctx.dispatch === 'none' ? [] : ['ATTN_DP'])
  const part = (of: Ref): RoutedRows => ({
    x: columns(of, 0, hidden),
    ids: columns(of, hidden, topK),
    weights: columns(of, hidden + topK, topK),
  })
  const own = part(travelling)
  const x = boundary.read(norm, ['ATTN_DP'], 'moe_in', own.x)
  route(ctx, spec, names, x, own.ids, own.weights)
  if (moves.padding === 'MAX_LEN' && moves.sizes.attnDp > 1) {
    b.emit('clear_padding', { ids: own.ids }, { rows: 'padded', label: 'padding rows choose no expert' })
  }
  const from = { value: travelling, layout: ['ATTN_DP'], owes: null } as const
  if (ctx.dispatch !== 'none') {
    // Over attention-TP the members hold equal rows; each sends its slice of them.
    const rows = part(moveRows(moves, from, ['ATTN_DP', 'ATTN_TP'], 'moe_in'))
    return dispatchedFeedForward(ctx, spec, names, rows, ctx.dispatch)
  }
  const all = part(moveRows(copying, from, [], 'moe_in'))
  const held = heldExperts(ctx, spec, all.ids)
  const value = routedExperts(ctx, spec, names, all.x, held, all.weights)
  // Cut over all ranks like the routed experts' sum, so that one reduction serves both.
  if (spec.shared) addSharedExpert(ctx, spec, spec.shared, names, all.x, value, 'gathered', ctx.tp)
  return { value, layout: [], owes: 'MOE_OUTPUT' }
}

/** Nothing travels in a gather: rows, ids and weights lie in buffers of their own, each in its own precision. */
function localFeedForward(
  ctx: LayerContext,
  spec: MoeFfnSpec,
  names: MoeNames,
  boundary: Boundary,
  norm: string,
): Placed {
  const { builder: b, hidden } = ctx
  const { topK } = spec.router
  const own: RoutedRows = {
    x: boundary.read(norm, ['ATTN_DP'], 'moe_in', b.arena('moe_in', hidden)),
    ids: b.arena('moe_ids', topK, 'tokens', 'i32'),
    weights: b.arena('moe_weights', topK, 'tokens', 'f32'),
  }
  route(ctx, spec, names, own.x, own.ids, own.weights)
  if (ctx.dispatch !== 'none') return dispatchedFeedForward(ctx, spec, names, own, ctx.dispatch)
  const held = heldExperts(ctx, spec, own.ids)
  const value = routedExperts(ctx, spec, names, own.x, held, own.weights)
  if (spec.shared) addSharedExpert(ctx, spec, spec.shared, names, own.x, value, 'gathered', WHOLE)
  return { value, layout: [], owes: null }
}

/** Hidden rows, physical expert ids and weights; those that travel lie side by side in one buffer. */
interface RoutedRows {
  readonly x: Ref
  readonly ids: Ref
  readonly weights: Ref
}

/** Through an all-to-all: rows go to the ranks of their experts and the sums come back to where they left. */
function dispatchedFeedForward(
  ctx: LayerContext,
  spec: MoeFfnSpec,
  names: MoeNames,
  { x, ids, weights }: RoutedRows,
  mode: DispatchMode,
): Placed {
  const { builder: b, layer, hidden, moves } = ctx
  const { topK } = spec.router
  const layout = ['ATTN_DP', 'ATTN_TP'] as const
  const rows = rowsIn(moves.sizes, layout)
  b.yield()
  b.emit('dispatch_send', { mode, x, ids, weights }, { rows, label: `${mode} dispatch: send` })
  b.yield()
  b.emit('dispatch_receive', { mode, x }, { rows, label: `${mode} dispatch: receive` })
  const partials = b.arena('partials', hidden, 'received')
  const held = b.arena('held_ids', topK, 'received', 'i32')
  const stacks = expertStacks(ctx, spec, names)
  const scratch = b.arena('moe_scratch', topK * (3 * stacks.width + hidden), 'received')
  const { gateUp, down, biases } = stacks
  const table = `local.${layer}`
  const args = { mode, partials, held, scratch, topK, table, gateUp, down, activation: spec.activation, ...biases }
  b.emit('dispatched_experts', args, { rows: 'received', label: 'routed experts of received rows' })
  const out = b.arena('moe_out', hidden, rows)
  b.emit('combine_send', { mode, partials, out }, { rows: 'received', label: `${mode} combine: send` })
  b.yield()
  b.emit('combine_receive', { mode, partials, out }, { rows, label: `${mode} combine: receive` })
  if (spec.shared) addSharedExpert(ctx, spec, spec.shared, names, x, out, rows, WHOLE)
  return { value: out, layout, owes: null }
}

/** Writes physical expert ids and weights of the own tokens. */
function route(ctx: LayerContext, spec: MoeFfnSpec, names: MoeNames, x: Ref, ids: Ref, weights: Ref): void {
  const { builder: b, layer, hidden } = ctx
  const { experts, topK } = spec.router
  const logits = b.arena('router_logits', experts, 'tokens', 'f32')
  const router = b.matrix(
    stacked(`${layer}.moe.router`, hidden, [rowsOf(`${names.router}.weight`, [experts, hidden])], 'f32'),
  )
  const bias = spec.routerBias
    ? { bias: b.vector(joined(`${layer}.moe.router_bias`, [elementsOf(`${names.router}.bias`, experts)])) }
    : {}
  b.emit('linear', { out: logits, x, weight: router, ...bias }, { label: 'router logits' })
  const correction = spec.correctionBias
    ? { bias: b.vector(joined(`${layer}.moe.correction_bias`, [elementsOf(names.correctionBias, experts)])) }
    : {}
  const label = `choose ${topK} of ${experts} experts`
  b.emit('router', { ids, weights, logits, spec: spec.router, ...correction }, { label })
  if (!ctx.replicated) return
  const { requestKeys, positions } = ctx.inputs
  const args = { out: ids, ids, requestKeys, positions, table: `replicas.${layer}`, layer }
  b.emit('choose_replicas', args, { label: 'a replica of each expert, by what the token is' })
}

/** Physical ids → rows of this rank's stack of experts, -1 for experts of other ranks. */
function heldExperts(ctx: LayerContext, spec: MoeFfnSpec, ids: Ref): Ref {
  const { topK, experts } = spec.router
  if (ctx.moves.sizes.ep === 1 && ctx.physicalExperts === experts) return ids
  const held = ctx.builder.arena('held_ids', topK, 'gathered', 'i32')
  const args = { out: held, ids, table: `held.${ctx.layer}` }
  ctx.builder.emit('map_ids', args, { rows: 'gathered', label: 'experts this rank holds' })
  return held
}

function routedExperts(ctx: LayerContext, spec: MoeFfnSpec, names: MoeNames, x: Ref, ids: Ref, weights: Ref): Ref {
  const { builder: b, hidden } = ctx
  const { topK } = spec.router
  const out = b.arena('moe_out', hidden, 'gathered')
  const { width, gateUp, down, biases } = expertStacks(ctx, spec, names)
  const scratch = b.arena('moe_scratch', topK * (3 * width + hidden), 'gathered')
  const args = { out, x, ids, weights, scratch, topK, gateUp, down, activation: spec.activation, ...biases }
  b.emit('experts', args, { rows: 'gathered', label: 'routed experts' })
  return out
}

/** The stack of the layer's logical experts (all, or this rank's), in this rank's cut of their width. */
function expertStacks(ctx: LayerContext, spec: MoeFfnSpec, names: MoeNames) {
  const { builder: b, layer, hidden } = ctx
  const { experts } = spec.router
  const width = cut(spec.intermediate, ctx.moeTp)
  const part = { experts, hidden, total: spec.intermediate, ...width, withDownBias: ctx.moeTp.index === 0 }
  const held = ctx.ownExperts?.(layer) ?? Array.from({ length: experts }, (_, e) => e)
  const pieces = held.map(e => names.expert(e, part))
  const stack = (name: string, n: number, k: number, key: 'gateUp' | 'down') =>
    b.matrix({ name: `${layer}.moe.${name}`, n, k, precision: 'model', pieces: pieces.map(p => p[key]) })
  const bias = (name: string, key: 'gateUpBias' | 'downBias') =>
    b.vector(
      joined(
        `${layer}.moe.${name}`,
        pieces.flatMap(p => p[key]),
      ),
    )
  const biases = {
    ...(spec.expertBias ? { gateUpBias: bias('gate_up_bias', 'gateUpBias') } : {}),
    ...(spec.expertBias && part.withDownBias ? { downBias: bias('down_bias', 'downBias') } : {}),
  }
  const gateUp = stack('gate_up', 2 * width.count, hidden, 'gateUp')
  const down = stack('down', hidden, width.count, 'down')
  return { width: width.count, gateUp, down, biases }
}

function addSharedExpert(
  ctx: LayerContext,
  spec: MoeFfnSpec,
  shared: NonNullable<MoeFfnSpec['shared']>,
  names: MoeNames,
  x: Ref,
  out: Ref,
  rows: RowSymbol,
  shard: Shard,
): void {
  const { builder: b, layer, hidden } = ctx
  const mlp = { kind: 'dense' as const, intermediate: shared.intermediate, activation: spec.activation, bias: false }
  if (!shared.gated) {
    gatedMlp(ctx, mlp, names.shared, x, { name: 'shared', rows, shard, addTo: out })
    return
  }
  const gate = b.arena('shared_gate', 1, rows, 'f32')
  const weight = b.matrix(
    stacked(`${layer}.shared.gate`, hidden, [rowsOf(`${names.sharedGate}.weight`, [1, hidden])], 'f32'),
  )
  b.emit('linear', { out: gate, x, weight }, { rows, label: 'shared expert gate' })
  const y = gatedMlp(ctx, mlp, names.shared, x, { name: 'shared', rows, shard })
  b.emit('sigmoid_scale', { out, x: y, gate, accumulate: true }, { rows, label: 'add the gated shared expert' })
}
