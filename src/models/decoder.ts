// The decoder: embedding, layers, final norm, output head, sampling, wired into a program for one rank.
// The same wiring serves every architecture and layout: numbers come from the spec, names from the architecture,
// moves between ranks from the boundary.
import type { ModelSpec } from '../formats/model-spec.js'
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
  rowsOf,
  stacked,
} from '../layers/index.js'
import type { ParallelSizes, RankCoordinates } from '../parallel/index.js'
import { type Program, ProgramBuilder } from '../program/index.js'
import { architectureOf } from './registry.js'

/** Sizes that bound a program's buffers. */
export interface ProgramLimits {
  /** Rows of one step on one attention-DP rank. */
  readonly tokens: number
  /** Sequences of one step, and rows that are sampled. */
  readonly sequences: number
  /** Longest sequence, in tokens. */
  readonly contextLength: number
  readonly pageSize: number
  /** KV slots of a rank's pool. */
  readonly kvSlots: number
}

export interface ModelProgram {
  readonly program: Program
  readonly weights: WeightPlan
}

const input = (
  b: ProgramBuilder,
  name: string,
  dtype: 'f32' | 'i32',
  rows: 'tokens' | 'logitRows' | number,
  columns = 1,
) => b.buffer({ name, kind: 'input', dtype, rows, columns })

function declareInputs(b: ProgramBuilder, limits: ProgramLimits): BatchInputs {
  return {
    ids: input(b, 'ids', 'i32', 'tokens'),
    positions: input(b, 'positions', 'i32', 'tokens'),
    rowSequence: input(b, 'row_sequence', 'i32', 'tokens'),
    slots: input(b, 'slots', 'i32', 'tokens'),
    pageTable: input(b, 'page_table', 'i32', limits.sequences, Math.ceil(limits.contextLength / limits.pageSize)),
    pageSize: limits.pageSize,
    logitIndex: input(b, 'logit_index', 'i32', 'logitRows'),
    sampleParams: input(b, 'sample_params', 'f32', 'logitRows', 8),
  }
}

/** Builds the program and the list of weights of one rank. Pure: the same arguments give the same program. */
export function buildDecoder(
  spec: ModelSpec,
  sizes: ParallelSizes,
  rank: RankCoordinates,
  limits: ProgramLimits,
): ModelProgram {
  const architecture = architectureOf(spec)
  const b = new ProgramBuilder()
  const inputs = declareInputs(b, limits)
  const hidden = spec.hiddenSize
  const eps = spec.normEps
  const normWeight = (name: string, tensor: string) => b.vector(joined(name, [elementsOf(tensor, hidden)]))

  const table = b.matrix(stacked('embed', hidden, [rowsOf(architecture.embed, [spec.vocabSize, hidden])]))
  const residual = b.arena('residual', hidden)
  b.emit('embed', { out: residual, ids: inputs.ids, table }, { label: 'token embeddings' })

  const boundary = new Boundary(b, sizes, eps)
  boundary.start(residual, ['ATTN_DP'])
  spec.layers.forEach((layerSpec, layer) => {
    b.layer(layer)
    const names = architecture.layer(layer)
    const attnTp = { index: rank.attnTp, count: sizes.attnTp }
    const ctx: LayerContext = {
      builder: b,
      inputs,
      layer,
      hidden,
      maxPositions: limits.contextLength,
      kvSlots: limits.kvSlots,
      attnTp,
    }

    const x = boundary.read(normWeight(`${layer}.input_norm`, names.inputNorm), ['ATTN_DP'], 'attn_in')
    const { attention } = layerSpec
    const attended =
      attention.kind === 'mla' && names.attention.kind === 'mla'
        ? mlaAttention(ctx, attention, names.attention, x)
        : attention.kind === 'gqa' && names.attention.kind === 'gqa'
          ? gqaAttention(ctx, attention, names.attention, x, eps)
          : undefined
    boundary.write({ value: attended!, layout: ['ATTN_DP'], owes: 'ATTN_TP' })

    const ffnNorm = normWeight(`${layer}.post_attention_norm`, names.postAttentionNorm)
    const y = boundary.read(ffnNorm, layerSpec.ffn.kind === 'moe' ? [] : ['ATTN_DP'], 'ffn_in')
    const fed =
      layerSpec.ffn.kind === 'moe'
        ? moeFeedForward(ctx, layerSpec.ffn, names.moe, y)
        : gatedMlp(ctx, layerSpec.ffn, names.dense, y, { name: 'mlp' })
    if (layerSpec.ffn.kind === 'moe') boundary.write({ value: fed, layout: [], owes: 'MOE_OUTPUT' })
    else boundary.write({ value: fed, layout: ['ATTN_DP'], owes: null })
  })
  b.layer(-1)

  const final = boundary.read(normWeight('final_norm', architecture.finalNorm), ['ATTN_DP'], 'final')
  const last = b.arena('last', hidden, 'logitRows')
  b.emit(
    'gather_rows',
    { out: last, x: final, index: inputs.logitIndex },
    { rows: 'logitRows', label: 'rows to sample' },
  )
  const head = spec.tieWordEmbeddings
    ? table
    : b.matrix(stacked('lm_head', hidden, [rowsOf(architecture.lmHead, [spec.vocabSize, hidden])]))
  const logits = b.buffer({ name: 'logits', kind: 'output', dtype: 'f32', rows: 'logitRows', columns: spec.vocabSize })
  b.emit('linear', { out: logits, x: last, weight: head }, { rows: 'logitRows', label: 'logits' })
  const sampled = b.buffer({ name: 'sampled', kind: 'output', dtype: 'i32', rows: 'logitRows', columns: 1 })
  const logprob = b.buffer({ name: 'logprob', kind: 'output', dtype: 'f32', rows: 'logitRows', columns: 1 })
  const sampling = { out: sampled, logits, params: inputs.sampleParams, logprob }
  b.emit('sample', sampling, { rows: 'logitRows', label: 'draw tokens' })

  const program = b.build(`${spec.architecture} decoder`, { tokens: limits.tokens, logitRows: limits.sequences })
  return { program, weights: { weights: b.weights, skip: tensor => architecture.skip(spec, tensor) } }
}

/** Cache columns a position of each layer takes, per attention-TP rank. */
export const kvColumns = (program: Program): number[] =>
  program.buffers.filter(x => x.kind === 'kv').map(x => x.columns)
