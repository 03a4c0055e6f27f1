// The mixture-of-experts feed-forward without an all-to-all backend (--moe-a2a-backend none).
//
// Each rank routes its own tokens, which fixes the replica of every expert once, where the token lives: all ranks then
// see the same choice. Hidden rows, physical expert ids and weights lie side by side in one buffer and travel in one
// gather. Every rank computes the experts it holds on all tokens; the sum over ranks is owed to the boundary.
import type { MoeFfnSpec } from '../formats/model-spec.js'
import type { WeightPiece } from '../formats/weight-spec.js'
import { columns, type Ref } from '../program/index.js'
import { type Boundary, moveRows, type Placed } from './boundary/index.js'
import { cut, elementsOf, joined, type LayerContext, rowsOf, stacked } from './context.js'
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

/** Routed plus shared experts of the rows the boundary holds. @returns rows of all DP ranks, a partial sum over all ranks */
export function moeFeedForward(
  ctx: LayerContext,
  spec: MoeFfnSpec,
  names: MoeNames,
  boundary: Boundary,
  norm: string,
): Placed {
  const { builder: b, hidden, moves } = ctx
  const { topK } = spec.router

  const travelling = b.arena('moe_in', hidden + 2 * topK)
  const ids = columns(travelling, hidden, topK)
  const weights = columns(travelling, hidden + topK, topK)
  const x = boundary.read(norm, ['ATTN_DP'], 'moe_in', columns(travelling, 0, hidden))
  route(ctx, spec, names, x, ids, weights)
  if (moves.padding === 'MAX_LEN' && moves.sizes.attnDp > 1) {
    b.emit('clear_padding', { ids }, { rows: 'padded', label: 'padding rows choose no expert' })
  }
  // Ids travel as bits beside the rows, so this gather must copy and never add.
  const copying = { ...moves, sumLenGather: 'all_gatherv' as const }
  const all = moveRows(copying, { value: travelling, layout: ['ATTN_DP'], owes: null }, [], 'moe_in')

  const held = heldExperts(ctx, spec, columns(all, hidden, topK))
  const value = routedExperts(ctx, spec, names, columns(all, 0, hidden), held, columns(all, hidden + topK, topK))
  if (spec.shared) addSharedExpert(ctx, spec, spec.shared, names, columns(all, 0, hidden), value)
  return { value, layout: [], owes: 'MOE_OUTPUT' }
}

/** Writes physical expert ids and weights of the own tokens. */
function route(ctx: LayerContext, spec: MoeFfnSpec, names: MoeNames, x: Ref, ids: Ref, weights: Ref): void {
  const { builder: b, layer, hidden } = ctx
  const { experts, topK } = spec.router
  const logits = b.arena('router_logits', experts)
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
  const { builder: b, layer, hidden } = ctx
  const { experts, topK } = spec.router
  const width = cut(spec.intermediate, ctx.moeTp)
  const out = b.arena('moe_out', hidden, 'gathered')
  const scratch = b.arena('moe_scratch', topK * (3 * width.count + hidden), 'gathered')
  const part = { experts, hidden, total: spec.intermediate, ...width, withDownBias: ctx.moeTp.index === 0 }
  const pieces = Array.from({ length: experts }, (_, e) => names.expert(e, part))
  const stack = (name: string, n: number, k: number, key: 'gateUp' | 'down') =>
    b.matrix({ name: `${layer}.moe.${name}`, n, k, precision: 'model', pieces: pieces.map(p => p[key]) })
  const biases = {
    ...(spec.expertBias
      ? {
          gateUpBias: b.vector(
            joined(
              `${layer}.moe.gate_up_bias`,
              pieces.flatMap(p => p.gateUpBias),
            ),
          ),
        }
      : {}),
    ...(spec.expertBias && part.withDownBias
      ? {
          downBias: b.vector(
            joined(
              `${layer}.moe.down_bias`,
              pieces.flatMap(p => p.downBias),
            ),
          ),
        }
      : {}),
  }
  const gateUp = stack('gate_up', 2 * width.count, hidden, 'gateUp')
  const down = stack('down', hidden, width.count, 'down')
  const args = { out, x, ids, weights, scratch, topK, gateUp, down, activation: spec.activation, ...biases }
  b.emit('experts', args, { rows: 'gathered', label: 'routed experts' })
  return out
}

/** Cut over all ranks like the routed experts' sum, so that one reduction serves both. */
function addSharedExpert(
  ctx: LayerContext,
  spec: MoeFfnSpec,
  shared: NonNullable<MoeFfnSpec['shared']>,
  names: MoeNames,
  x: Ref,
  out: Ref,
): void {
  const { builder: b, layer, hidden } = ctx
  const rows = 'gathered'
  const mlp = { kind: 'dense' as const, intermediate: shared.intermediate, activation: spec.activation, bias: false }
  if (!shared.gated) {
    gatedMlp(ctx, mlp, names.shared, x, { name: 'shared', rows, shard: ctx.tp, addTo: out })
    return
  }
  const gate = b.arena('shared_gate', 1, rows)
  const weight = b.matrix(
    stacked(`${layer}.shared.gate`, hidden, [rowsOf(`${names.sharedGate}.weight`, [1, hidden])], 'f32'),
  )
  b.emit('linear', { out: gate, x, weight }, { rows, label: 'shared expert gate' })
  const y = gatedMlp(ctx, mlp, names.shared, x, { name: 'shared', rows, shard: ctx.tp })
  b.emit('sigmoid_scale', { out, x: y, gate, accumulate: true }, { rows, label: 'add the gated shared expert' })
}
