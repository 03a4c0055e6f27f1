// What a checkpoint's config says, in one vocabulary for all architectures: plain data, every field decided.
// Made by the config readers in formats/hf, consumed by the model wirings in models/.
import type { GatedActivation, RouterSpec } from '../device/ops.js'

export type ArchitectureName =
  | 'deepseek_v2'
  | 'deepseek_v3'
  | 'qwen2_moe'
  | 'qwen3_moe'
  | 'mixtral'
  | 'olmoe'
  | 'glm4_moe'
  | 'gpt_oss'

/** Rotary embedding of one attention layer. */
export interface RopeSpec {
  /** Elements of a head that rotate. */
  readonly width: number
  /** Pairs are (2i, 2i+1) in the checkpoint's weights (DeepSeek), else (i, i + width/2). */
  readonly interleaved: boolean
  /** Angular frequency of each pair [width/2], scaling (yarn, linear, llama3 …) already applied. */
  readonly inverseFrequencies: readonly number[]
  /** Multiplies cosines and sines (yarn's attention factor). */
  readonly attentionFactor: number
}

export interface GqaSpec {
  readonly kind: 'gqa'
  readonly heads: number
  readonly kvHeads: number
  readonly headDim: number
  readonly qkvBias: boolean
  readonly outputBias: boolean
  /** RMS norm of queries and keys: per head (weight [headDim]) or over the whole row (weight [heads*headDim]). */
  readonly qkNorm: 'none' | 'head' | 'row'
  /** Clamp q, k and v to ±clip (olmoe's clip_qkv), or null. */
  readonly clipQkv: number | null
  /** Sliding window in positions, or null for full attention. */
  readonly window: number | null
  readonly sinks: boolean
  readonly rope: RopeSpec
  readonly scale: number
}

export interface MlaSpec {
  readonly kind: 'mla'
  readonly heads: number
  /** null: one q_proj, no query compression. */
  readonly qLoraRank: number | null
  readonly kvLoraRank: number
  readonly nopeDim: number
  readonly vDim: number
  /** On the down-projections q_a_proj and kv_a_proj_with_mqa only; q_proj, q_b_proj and kv_b_proj never have one. */
  readonly qkvBias: boolean
  readonly outputBias: boolean
  /** rope.width is qk_rope_head_dim. */
  readonly rope: RopeSpec
  readonly scale: number
}

export type AttentionSpec = GqaSpec | MlaSpec

export interface DenseFfnSpec {
  readonly kind: 'dense'
  readonly intermediate: number
  readonly activation: GatedActivation
  readonly bias: boolean
}

export interface MoeFfnSpec {
  readonly kind: 'moe'
  /** Width of one routed expert. */
  readonly intermediate: number
  readonly activation: GatedActivation
  readonly router: RouterSpec
  /** e_score_correction_bias is added for the choice only. */
  readonly correctionBias: boolean
  /** The router linear itself has a bias (gpt_oss). */
  readonly routerBias: boolean
  readonly expertBias: boolean
  /** Experts every token visits; `gated`: scaled by a sigmoid of its own (qwen2_moe). */
  readonly shared: { readonly intermediate: number; readonly gated: boolean } | null
}

export type FfnSpec = DenseFfnSpec | MoeFfnSpec

export interface LayerSpec {
  readonly attention: AttentionSpec
  readonly ffn: FfnSpec
}

export interface ModelSpec {
  readonly architecture: ArchitectureName
  readonly vocabSize: number
  readonly hiddenSize: number
  readonly normEps: number
  readonly maxPositions: number
  readonly tieWordEmbeddings: boolean
  /** What the checkpoint's weights were stored for: decides `--dtype auto`. */
  readonly dtype: 'float32' | 'bfloat16' | 'float16'
  readonly layers: readonly LayerSpec[]
  /** Token ids that end a text, from config.json and generation_config.json. */
  readonly eosTokenIds: readonly number[]
  readonly bosTokenId: number | null
  /** Layers after `layers.length` that the checkpoint may hold and that are skipped by name (next-token prediction). */
  readonly nextnLayers: number
  /** Block-FP8 weights: their block, else null. */
  readonly fp8Block: readonly [number, number] | null
}
