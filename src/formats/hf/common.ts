// The fields that all architectures share, and the pieces their readers are made of: grouped-query heads, softmax routers,
// which layers are sparse, which attend through a window. Bounds keep absurd numbers from costing time or memory.
import type { GatedActivation, RouterSpec } from '../../device/ops.js'
import type { DenseFfnSpec, FfnSpec, GqaSpec, LayerSpec } from '../model-spec.js'
import type { ConfigReader } from './config-reader.js'
import { type RopeReading, readRope } from './rope-config.js'

export const SIDE = { min: 1, max: 1 << 20 }
export const COUNT = { min: 1, max: 65536 }
export const SILU: GatedActivation = { kind: 'silu' }

export interface Base {
  readonly hiddenSize: number
  readonly layerCount: number
  readonly maxPositions: number
  readonly heads: number
}

/** What an architecture's reader adds to the shared fields. */
export interface Body {
  readonly layers: readonly LayerSpec[]
  readonly nextnLayers: number
}

export type ArchitectureReader = (reader: ConfigReader, base: Base) => Body

/** One LayerSpec a layer. */
export const layersOf = (base: Base, layer: (index: number) => LayerSpec): LayerSpec[] =>
  Array.from({ length: base.layerCount }, (_, index) => layer(index))

/** Hugging Face's names of SiLU; any other activation is refused. */
export function readSilu(reader: ConfigReader): void {
  reader.fixed('hidden_act', ['silu', 'swish'], 'only silu is computed')
}

export interface GqaOptions {
  readonly qkvBias: boolean
  readonly outputBias: boolean
  readonly qkNorm: GqaSpec['qkNorm']
  readonly clipQkv?: number | null
  readonly sinks?: boolean
  /** Default of num_key_value_heads: a number, or null for "as many as heads". */
  readonly kvHeads?: number | null
  readonly headDim?: number
  readonly defaultTheta?: number
  readonly partial?: number | null
  readonly ropeDefaults?: Record<string, unknown>
}

/** Grouped-query attention with the window left open: [heads, kvHeads, headDim], rope and scale headDim^-1/2. */
export function readGqa(reader: ConfigReader, base: Base, options: GqaOptions): Omit<GqaSpec, 'window'> {
  const { heads } = base
  const kvHeads = reader.int('num_key_value_heads', COUNT, options.kvHeads ?? heads)
  if (heads % kvHeads !== 0)
    reader.refuse('num_key_value_heads', `a divisor of num_attention_heads (${heads})`, kvHeads)
  const ownHeadDim = reader.nullableInt('head_dim', SIDE, null) ?? options.headDim ?? null
  if (ownHeadDim === null && base.hiddenSize % heads !== 0)
    reader.refuse(
      'num_attention_heads',
      `a divisor of hidden_size (${base.hiddenSize}) when there is no head_dim`,
      heads,
    )
  const headDim = ownHeadDim ?? base.hiddenSize / heads
  if (heads * headDim > 1 << 24) reader.refuse('head_dim', `at most ${Math.floor((1 << 24) / heads)}`, headDim)
  const rope: RopeReading = readRope(reader, {
    headDim,
    interleaved: false,
    defaultTheta: options.defaultTheta ?? 10_000,
    maxPositions: base.maxPositions,
    partial: options.partial ?? null,
    ...(options.ropeDefaults ? { defaults: options.ropeDefaults } : {}),
  })
  return {
    kind: 'gqa',
    heads,
    kvHeads,
    headDim,
    qkvBias: options.qkvBias,
    outputBias: options.outputBias,
    qkNorm: options.qkNorm,
    clipQkv: options.clipQkv ?? null,
    sinks: options.sinks ?? false,
    rope: rope.spec,
    scale: headDim ** -0.5,
  }
}

/** How many experts, in all spellings. */
export const readExperts = (reader: ConfigReader): number =>
  reader.int(['n_routed_experts', 'num_local_experts', 'num_experts'], COUNT)

export function readTopK(
  reader: ConfigReader,
  experts: number,
  names: readonly string[] = ['num_experts_per_tok'],
): number {
  const topK = reader.int(names, COUNT)
  if (topK > experts) reader.refuse(names[0]!, `at most the number of experts (${experts})`, topK)
  return topK
}

/** Softmax over all experts, best top_k, maybe divided by their sum. */
export const softmaxRouter = (experts: number, topK: number, normalize: boolean): RouterSpec => ({
  experts,
  topK,
  scoring: 'softmax',
  groups: 1,
  topGroups: 1,
  groupScore: 'max',
  normalize,
  scale: 1,
})

/** n_group and topk_group: null or absent means one group. @returns groups that can hold `topK` experts. */
export function readGroups(
  reader: ConfigReader,
  experts: number,
  topK: number,
  fallback: { readonly groups: number; readonly topGroups: number },
  groupScore: 'max' | 'top2',
): { readonly groups: number; readonly topGroups: number } {
  const groups = reader.nullableInt('n_group', COUNT, fallback.groups) ?? 1
  const topGroups = reader.nullableInt('topk_group', COUNT, Math.min(fallback.topGroups, groups)) ?? groups
  if (experts % groups !== 0) reader.refuse('n_group', `a divisor of the number of experts (${experts})`, groups)
  if (topGroups > groups) reader.refuse('topk_group', `at most n_group (${groups})`, topGroups)
  const perGroup = experts / groups
  if (groups > 1 && groupScore === 'top2' && perGroup < 2)
    reader.refuse('n_group', `at most ${Math.floor(experts / 2)}, so that each group has two experts`, groups)
  if (topK > topGroups * perGroup)
    reader.refuse('num_experts_per_tok', `at most ${topGroups * perGroup}, the experts in ${topGroups} groups`, topK)
  return { groups, topGroups }
}

/** first_k_dense_replace and moe_layer_freq (DeepSeek, GLM): sparse from the first on, every freq-th layer. */
export function readDensePrefix(reader: ConfigReader, firstDense: number): (layer: number) => boolean {
  const first = reader.int('first_k_dense_replace', { min: 0, max: 65536 }, firstDense)
  const every = reader.int('moe_layer_freq', COUNT, 1)
  return layer => layer >= first && layer % every === 0
}

/** mlp_only_layers and decoder_sparse_step (Qwen). */
export function readSparseStep(reader: ConfigReader, base: Base): (layer: number) => boolean {
  const dense = new Set(reader.ints('mlp_only_layers', { min: 0, max: base.layerCount - 1 }) ?? [])
  const step = reader.int('decoder_sparse_step', COUNT, 1)
  return layer => !dense.has(layer) && (layer + 1) % step === 0
}

export const denseFfn = (intermediate: number): DenseFfnSpec => ({
  kind: 'dense',
  intermediate,
  activation: SILU,
  bias: false,
})

/** The dense width is only asked for when some layer is dense. */
export function ffnOf(base: Base, sparse: (layer: number) => boolean, moe: FfnSpec, dense: () => FfnSpec): FfnSpec[] {
  let made: FfnSpec | null = null
  return Array.from({ length: base.layerCount }, (_, layer) => {
    if (sparse(layer)) return moe
    made ??= dense()
    return made
  })
}

export const WINDOW = { min: 1, max: 2 ** 31 }
export const LAYER_TYPES = ['full_attention', 'sliding_attention'] as const
