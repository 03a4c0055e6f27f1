// The decoder: embedding, layers, final norm, output head, sampling, wired into a program for one rank.
// The same wiring serves every architecture and layout: numbers come from the spec, names from the architecture,
// moves between ranks from the boundary.
import type { LayerSpec, ModelSpec } from '../formats/model-spec.js'
import type { WeightPlan } from '../formats/weight-spec.js'
import {
  type BatchInputs,
  Boundary,
  elementsOf,
  gatedMlp,
  gqaAttention,
  joined,
  type LayerContext,
  mlaAttention,
  moeFeedForward,
  type Placed,
  rowsOf,
  stacked,
} from '../layers/index.js'
import { type Program, ProgramBuilder, type Ref, type RowSymbol } from '../program/index.js'
import type { LayerNames } from './architecture.js'
import type { ProgramLimits, RankLayout } from './layout.js'
import { outputHead } from './output-head.js'
import { architectureOf } from './registry.js'

export interface ModelProgram {
  readonly program: Program
  readonly weights: WeightPlan
}

const inputBuffer = (b: ProgramBuilder, name: string, dtype: 'f32' | 'i32', rows: RowSymbol | number, columns = 1) =>
  b.buffer({ name, kind: 'input', dtype, rows, columns })

function declareInputs(b: ProgramBuilder, limits: ProgramLimits): BatchInputs {
  return {
    ids: inputBuffer(b, 'ids', 'i32', 'tokens'),
    requestKeys: inputBuffer(b, 'request_keys', 'i32', 'tokens'),
    positions: inputBuffer(b, 'positions', 'i32', 'tokens'),
    rowSequence: inputBuffer(b, 'row_sequence', 'i32', 'tokens'),
    slots: inputBuffer(b, 'slots', 'i32', 'tokens'),
    pageTable: inputBuffer(b, 'page_table', 'i32', limits.sequences, Math.ceil(limits.contextLength / limits.pageSize)),
    pageSize: limits.pageSize,
    logitIndex: inputBuffer(b, 'logit_index', 'i32', 'logitRows'),
    sampleParams: inputBuffer(b, 'sample_params', 'f32', 'logitRows', 8),
  }
}

/** Builds the program and the list of weights of one rank. Pure: the same arguments give the same program. */
export function buildDecoder(spec: ModelSpec, layout: RankLayout, limits: ProgramLimits): ModelProgram {
  const architecture = architectureOf(spec)
  const { sizes, rank, padding, sumLenGather } = layout
  const b = new ProgramBuilder()
  const inputs = declareInputs(b, limits)
  const hidden = spec.hiddenSize
  const normWeight = (name: string, tensor: string) => b.vector(joined(name, [elementsOf(tensor, hidden)]))

  const table = b.matrix(stacked('embed', hidden, [rowsOf(architecture.embed, [spec.vocabSize, hidden])]))
  const residual = b.arena('residual', hidden, 'tokens', 'f32')
  b.emit('embed', { out: residual, ids: inputs.ids, table }, { label: 'token embeddings' })

  const { unfused = false } = layout
  const moves = { builder: b, sizes, padding, sumLenGather, attnTpIndex: rank.attnTp, unfused }
  const boundary = new Boundary(moves, residual, spec.normEps)
  const shared = {
    builder: b,
    inputs,
    hidden,
    moves,
    maxPositions: limits.contextLength,
    kvSlots: limits.kvSlots,
    attnTp: { index: rank.attnTp, count: sizes.attnTp },
    tp: { index: rank.rank, count: sizes.tp },
    moeTp: { index: rank.moeTp, count: sizes.moeTp },
    physicalExperts: layout.physicalExperts,
    replicated: layout.replicated,
    dispatch: layout.dispatch,
    ownExperts: layout.ownExperts,
  }
  spec.layers.forEach((layerSpec, layer) => {
    b.layer(layer)
    const names = architecture.layer(layer)
    const ctx: LayerContext = { ...shared, layer }
    const inputNorm = normWeight(`${layer}.input_norm`, names.inputNorm)
    const value = attention(ctx, layerSpec, names, boundary.read(inputNorm, ['ATTN_DP'], 'attn_in'), spec.normEps)
    boundary.write({ value, layout: ['ATTN_DP'], owes: 'ATTN_TP' })
    const ffnNorm = normWeight(`${layer}.post_attention_norm`, names.postAttentionNorm)
    boundary.write(feedForward(ctx, layerSpec, names, boundary, ffnNorm, layout.denseLocal))
  })
  b.layer(-1)

  const final = boundary.read(normWeight('final_norm', architecture.finalNorm), ['ATTN_DP'], 'final')
  outputHead(b, spec, layout, inputs, final, table, architecture.lmHead)
  const program = b.build(`${spec.architecture} decoder`, {
    tokens: limits.tokens,
    padded: limits.tokens,
    gathered: limits.tokens * sizes.attnDp,
    slice: Math.ceil(limits.tokens / sizes.attnTp),
    received: Math.max(1, layout.maxReceived),
    logitRows: limits.sequences,
    gatheredLogits: limits.sequences * sizes.attnDp,
  })
  return { program, weights: { weights: b.weights, skip: tensor => architecture.skip(spec, tensor) } }
}

function attention(ctx: LayerContext, { attention: spec }: LayerSpec, names: LayerNames, x: Ref, eps: number): Ref {
  if (spec.kind === 'mla' && names.attention.kind === 'mla') return mlaAttention(ctx, spec, names.attention, x)
  if (spec.kind === 'gqa' && names.attention.kind === 'gqa') return gqaAttention(ctx, spec, names.attention, x, eps)
  throw new TypeError(`the names of layer ${ctx.layer} are of another kind of attention than its spec`)
}

function feedForward(
  ctx: LayerContext,
  { ffn }: LayerSpec,
  names: LayerNames,
  boundary: Boundary,
  norm: string,
  denseLocal: boolean,
): Placed {
  if (ffn.kind === 'moe') return moeFeedForward(ctx, ffn, names.moe, boundary, norm)
  if (denseLocal) {
    const x = boundary.read(norm, ['ATTN_DP'], 'ffn_in')
    const value = gatedMlp(ctx, ffn, names.dense, x, { name: 'mlp', rows: 'tokens' })
    return { value, layout: ['ATTN_DP'], owes: null }
  }
  const x = boundary.read(norm, [], 'ffn_in')
  const value = gatedMlp(ctx, ffn, names.dense, x, { name: 'mlp', rows: 'gathered', shard: ctx.tp })
  return { value, layout: [], owes: 'TP' }
}

/** Cache columns a position of each layer takes, per attention-TP rank. */
export const kvColumns = (program: Program): number[] =>
  program.buffers.filter(x => x.kind === 'kv').map(x => x.columns)
