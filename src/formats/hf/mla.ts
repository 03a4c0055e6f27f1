// DeepSeek's latent attention as its two model generations configure it, and the feed-forward fields they share.
// Sources: DeepSeek-V2 (arXiv 2405.04434), DeepSeek-V3 (2412.19437), Hugging Face transformers 5.
import type { RouterSpec } from '../../device/ops.js'
import type { FfnSpec, MlaSpec } from '../model-spec.js'
import { type Base, COUNT, denseFfn, ffnOf, readDensePrefix, readExperts, readSilu, SIDE, SILU } from './common.js'
import type { ConfigReader } from './config-reader.js'
import { readRope } from './rope-config.js'

/**
 * `head_dim` in these configs is only the rotary part of a head, so it decides nothing. `attention_bias` puts a bias on the
 * two down-projections and on the output, never on q_proj, q_b_proj or kv_b_proj.
 */
export function readMla(reader: ConfigReader, base: Base, interleaved: boolean): MlaSpec {
  const { heads } = base
  const kvHeads = reader.int('num_key_value_heads', COUNT, heads)
  if (kvHeads !== heads)
    reader.refuse(
      'num_key_value_heads',
      `num_attention_heads (${heads}), since every head reads the one latent`,
      kvHeads,
    )
  const nopeDim = reader.int('qk_nope_head_dim', SIDE)
  const ropeDim = reader.int('qk_rope_head_dim', SIDE)
  const vDim = reader.int('v_head_dim', SIDE)
  const qkDim = reader.int('qk_head_dim', SIDE, nopeDim + ropeDim)
  if (qkDim !== nopeDim + ropeDim)
    reader.refuse('qk_head_dim', `qk_nope_head_dim + qk_rope_head_dim (${nopeDim + ropeDim})`, qkDim)
  if (ropeDim % 2 !== 0) reader.refuse('qk_rope_head_dim', 'an even number', ropeDim)
  if (heads * (qkDim + vDim) > 1 << 26)
    reader.refuse('num_attention_heads', `at most ${Math.floor((1 << 26) / (qkDim + vDim))} heads of this size`, heads)
  const headDim = reader.nullableInt('head_dim', SIDE, null)
  if (headDim !== null && ![ropeDim, qkDim, vDim, Math.floor(base.hiddenSize / heads)].includes(headDim))
    reader.refuse('head_dim', `qk_rope_head_dim (${ropeDim})`, headDim)
  const bias = reader.bool('attention_bias', false)
  const rope = readRope(reader, {
    headDim: ropeDim,
    interleaved,
    defaultTheta: 10_000,
    maxPositions: base.maxPositions,
    partial: null,
  })
  return {
    kind: 'mla',
    heads,
    qLoraRank: reader.nullableInt('q_lora_rank', SIDE, 1536),
    kvLoraRank: reader.int('kv_lora_rank', SIDE),
    nopeDim,
    vDim,
    qkvBias: bias,
    outputBias: bias,
    rope: rope.spec,
    scale: qkDim ** -0.5 * rope.softmaxFactor,
  }
}

/** Dense layers first, then experts with shared ones of n_shared_experts · moe_intermediate_size. */
export function readDeepseekFfn(
  reader: ConfigReader,
  base: Base,
  options: {
    readonly firstDense: number
    readonly sharedExperts: number
    readonly correctionBias: boolean
    readonly router: (experts: number) => RouterSpec
  },
): FfnSpec[] {
  readSilu(reader)
  const sparse = readDensePrefix(reader, options.firstDense)
  const intermediate = reader.int('moe_intermediate_size', SIDE)
  const shared = reader.int('n_shared_experts', { min: 0, max: 4096 }, options.sharedExperts)
  const router = options.router(readExperts(reader))
  const denseWidth = reader.int('intermediate_size', SIDE)
  return ffnOf(
    base,
    sparse,
    {
      kind: 'moe',
      intermediate,
      activation: SILU,
      router,
      correctionBias: options.correctionBias,
      routerBias: false,
      expertBias: false,
      shared: shared === 0 ? null : { intermediate: shared * intermediate, gated: false },
    },
    () => denseFfn(denseWidth),
  )
}

/** num_nextn_predict_layers, lately num_mtp_layers: layers behind the last that predict further tokens. */
export const readNextnLayers = (reader: ConfigReader): number =>
  reader.int(['num_nextn_predict_layers', 'num_mtp_layers'], { min: 0, max: 1024 }, 1)
