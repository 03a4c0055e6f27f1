// The mixture-of-experts feed-forward: router, routed experts, shared expert.
// Dispatch `none`: every rank sees all tokens it needs and computes the experts it holds; the sum over ranks is owed.
import type { MoeFfnSpec } from '../formats/model-spec.js'
import type { WeightPiece } from '../formats/weight-spec.js'
import type { Ref } from '../program/index.js'
import { elementsOf, joined, type LayerContext, rowsOf, stacked } from './context.js'
import { gatedMlp, type MlpNames } from './mlp.js'

export interface MoeNames {
  /** Router linear. */
  readonly router: string
  readonly correctionBias: string
  /** gateUp: pieces of [2·inter, hidden], gate rows first; down: pieces of [hidden, inter]. */
  readonly expert: (expert: number, inter: number, hidden: number) => ExpertPieces
  readonly shared: MlpNames
  readonly sharedGate: string
}

export interface ExpertPieces {
  readonly gateUp: readonly WeightPiece[]
  readonly down: readonly WeightPiece[]
  readonly gateUpBias: readonly WeightPiece[]
  readonly downBias: readonly WeightPiece[]
}

/** Experts stored one by one under three names. */
export const separateExperts =
  (names: (expert: number) => MlpNames) =>
  (expert: number, inter: number, hidden: number): ExpertPieces => {
    const { gate, up, down } = names(expert)
    return {
      gateUp: [rowsOf(`${gate}.weight`, [inter, hidden]), rowsOf(`${up}.weight`, [inter, hidden])],
      down: [rowsOf(`${down}.weight`, [hidden, inter])],
      gateUpBias: [],
      downBias: [],
    }
  }

/** @returns [tokens, hidden]: routed plus shared experts. */
export function moeFeedForward(ctx: LayerContext, spec: MoeFfnSpec, names: MoeNames, x: Ref): Ref {
  const { builder: b, layer, hidden } = ctx
  const { experts, topK } = spec.router
  const { intermediate } = spec

  const logits = b.arena('router_logits', experts)
  const router = b.matrix(
    stacked(`${layer}.moe.router`, hidden, [rowsOf(`${names.router}.weight`, [experts, hidden])], 'f32'),
  )
  const routerBias = spec.routerBias
    ? { bias: b.vector(joined(`${layer}.moe.router_bias`, [elementsOf(`${names.router}.bias`, experts)])) }
    : {}
  b.emit('linear', { out: logits, x, weight: router, ...routerBias }, { label: 'router logits' })

  const ids = b.arena('topk_ids', topK, 'tokens', 'i32')
  const weights = b.arena('topk_weights', topK)
  const correction = spec.correctionBias
    ? { bias: b.vector(joined(`${layer}.moe.correction_bias`, [elementsOf(names.correctionBias, experts)])) }
    : {}
  b.emit(
    'router',
    { ids, weights, logits, spec: spec.router, ...correction },
    { label: `choose ${topK} of ${experts} experts` },
  )

  const out = b.arena('moe_out', hidden)
  const scratch = b.arena('moe_scratch', topK * (3 * intermediate + hidden))
  const pieces = Array.from({ length: experts }, (_, e) => names.expert(e, intermediate, hidden))
  const biases = spec.expertBias
    ? {
        gateUpBias: b.vector(
          joined(
            `${layer}.moe.gate_up_bias`,
            pieces.flatMap(p => p.gateUpBias),
          ),
        ),
        downBias: b.vector(
          joined(
            `${layer}.moe.down_bias`,
            pieces.flatMap(p => p.downBias),
          ),
        ),
      }
    : {}
  const gateUp = b.matrix({
    name: `${layer}.moe.gate_up`,
    n: 2 * intermediate,
    k: hidden,
    precision: 'model',
    pieces: pieces.map(p => p.gateUp),
  })
  const down = b.matrix({
    name: `${layer}.moe.down`,
    n: hidden,
    k: intermediate,
    precision: 'model',
    pieces: pieces.map(p => p.down),
  })
  b.emit(
    'experts',
    { out, x, ids, weights, scratch, topK, gateUp, down, activation: spec.activation, ...biases },
    { label: 'routed experts' },
  )
  if (spec.shared) addSharedExpert(ctx, spec, spec.shared, names, x, out)
  return out
}

function addSharedExpert(
  ctx: LayerContext,
  spec: MoeFfnSpec,
  shared: NonNullable<MoeFfnSpec['shared']>,
  names: MoeNames,
  x: Ref,
  out: Ref,
): void {
  const { builder: b, layer, hidden } = ctx
  const mlp = { kind: 'dense' as const, intermediate: shared.intermediate, activation: spec.activation, bias: false }
  if (!shared.gated) {
    gatedMlp(ctx, mlp, names.shared, x, { name: 'shared', addTo: out })
    return
  }
  const gate = b.arena('shared_gate', 1)
  const weight = b.matrix(
    stacked(`${layer}.shared.gate`, hidden, [rowsOf(`${names.sharedGate}.weight`, [1, hidden])], 'f32'),
  )
  b.emit('linear', { out: gate, x, weight }, { label: 'shared expert gate' })
  const y = gatedMlp(ctx, mlp, names.shared, x, { name: 'shared' })
  b.emit('sigmoid_scale', { out, x: y, gate, accumulate: true }, { label: 'add the gated shared expert' })
}
