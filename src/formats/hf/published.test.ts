// Configs as published checkpoints have them, in the spelling of their time: each is read, and says what the model card says.
import { describe, expect, it } from 'vitest'
import type { GqaSpec, MlaSpec, MoeFfnSpec } from '../model-spec.js'
import { ModelConfigError, modelSpecOf, NO_GENERATION_DEFAULTS } from './index.js'

type Raw = Record<string, unknown>
const read = (raw: Raw) => modelSpecOf('config.json', raw, NO_GENERATION_DEFAULTS)

const inert = {
  attention_dropout: 0.0,
  initializer_range: 0.02,
  use_cache: true,
  transformers_version: '4.46.0',
  hidden_act: 'silu',
}

const deepseekV3: Raw = {
  ...inert,
  architectures: ['DeepseekV3ForCausalLM'],
  model_type: 'deepseek_v3',
  auto_map: { AutoConfig: 'configuration_deepseek.DeepseekV3Config' },
  attention_bias: false,
  bos_token_id: 0,
  eos_token_id: 1,
  ep_size: 1,
  first_k_dense_replace: 3,
  hidden_size: 7168,
  intermediate_size: 18432,
  kv_lora_rank: 512,
  max_position_embeddings: 163840,
  moe_intermediate_size: 2048,
  moe_layer_freq: 1,
  n_group: 8,
  n_routed_experts: 256,
  n_shared_experts: 1,
  norm_topk_prob: true,
  num_attention_heads: 128,
  num_experts_per_tok: 8,
  num_hidden_layers: 61,
  num_key_value_heads: 128,
  num_nextn_predict_layers: 1,
  q_lora_rank: 1536,
  qk_nope_head_dim: 128,
  qk_rope_head_dim: 64,
  quantization_config: {
    activation_scheme: 'dynamic',
    fmt: 'e4m3',
    quant_method: 'fp8',
    weight_block_size: [128, 128],
  },
  rms_norm_eps: 1e-6,
  rope_scaling: {
    beta_fast: 32,
    beta_slow: 1,
    factor: 40,
    mscale: 1.0,
    mscale_all_dim: 1.0,
    original_max_position_embeddings: 4096,
    type: 'yarn',
  },
  rope_theta: 10000,
  routed_scaling_factor: 2.5,
  scoring_func: 'sigmoid',
  tie_word_embeddings: false,
  topk_group: 4,
  topk_method: 'noaux_tc',
  torch_dtype: 'bfloat16',
  v_head_dim: 128,
  vocab_size: 129280,
}

describe('published configs', () => {
  it('DeepSeek-V3 and, under its class, Kimi-K2', () => {
    const spec = read(deepseekV3)
    expect(spec).toMatchObject({ dtype: 'bfloat16', fp8Block: [128, 128], nextnLayers: 1 })
    expect(spec.layers.filter(l => l.ffn.kind === 'dense')).toHaveLength(3)
    const attention = spec.layers[60]!.attention as MlaSpec
    expect(attention.scale).toBeCloseTo(192 ** -0.5 * (0.1 * Math.log(40) + 1) ** 2, 12)
    expect(attention.rope.attentionFactor).toBe(1)
    const kimi = read({
      ...deepseekV3,
      model_type: 'kimi_k2',
      n_group: 1,
      topk_group: 1,
      n_routed_experts: 384,
      num_attention_heads: 64,
      num_key_value_heads: 64,
      first_k_dense_replace: 1,
      num_nextn_predict_layers: 0,
      aux_loss_alpha: 0.001,
      seq_aux: true,
      vocab_size: 163840,
    })
    expect((kimi.layers[1]!.ffn as MoeFfnSpec).router).toMatchObject({ experts: 384, groups: 1, topK: 8 })
  })

  it('DeepSeek-V2-Lite', () => {
    const { quantization_config: _, num_nextn_predict_layers: __, ...rest } = deepseekV3
    const spec = read({
      ...rest,
      architectures: ['DeepseekV2ForCausalLM'],
      model_type: 'deepseek_v2',
      aux_loss_alpha: 0.001,
      seq_aux: true,
      q_lora_rank: null,
      n_group: 1,
      topk_group: 1,
      topk_method: 'greedy',
      scoring_func: 'softmax',
      norm_topk_prob: false,
      n_routed_experts: 64,
      n_shared_experts: 2,
      num_experts_per_tok: 6,
      num_attention_heads: 16,
      num_key_value_heads: 16,
      hidden_size: 2048,
      first_k_dense_replace: 1,
      num_hidden_layers: 27,
      moe_intermediate_size: 1408,
      routed_scaling_factor: 1.0,
      rope_scaling: {
        beta_fast: 32,
        beta_slow: 1,
        factor: 40,
        mscale: 707 / 1000,
        mscale_all_dim: 707 / 1000,
        original_max_position_embeddings: 4096,
        type: 'yarn',
      },
    })
    expect(spec.layers[1]!.ffn).toMatchObject({
      shared: { intermediate: 2816, gated: false },
      router: { normalize: false, scoring: 'softmax' },
    })
    expect((spec.layers[0]!.attention as MlaSpec).qLoraRank).toBeNull()
  })

  it('Qwen3-30B-A3B, its FP8 variant and Qwen3-Coder', () => {
    const raw: Raw = {
      ...inert,
      architectures: ['Qwen3MoeForCausalLM'],
      model_type: 'qwen3_moe',
      attention_bias: false,
      bos_token_id: 151643,
      eos_token_id: 151645,
      decoder_sparse_step: 1,
      head_dim: 128,
      hidden_size: 2048,
      intermediate_size: 6144,
      max_position_embeddings: 40960,
      max_window_layers: 48,
      mlp_only_layers: [],
      moe_intermediate_size: 768,
      norm_topk_prob: true,
      num_attention_heads: 32,
      num_experts: 128,
      num_experts_per_tok: 8,
      num_hidden_layers: 48,
      num_key_value_heads: 4,
      output_router_logits: false,
      rms_norm_eps: 1e-6,
      rope_scaling: null,
      rope_theta: 1000000.0,
      router_aux_loss_coef: 0.001,
      sliding_window: null,
      tie_word_embeddings: false,
      torch_dtype: 'bfloat16',
      use_sliding_window: false,
      vocab_size: 151936,
    }
    expect(read(raw).layers[0]!.attention).toMatchObject({
      heads: 32,
      kvHeads: 4,
      headDim: 128,
      qkNorm: 'head',
      window: null,
    })
    const fp8 = {
      quant_method: 'fp8',
      fmt: 'e4m3',
      activation_scheme: 'dynamic',
      modules_to_not_convert: ['lm_head'],
      weight_block_size: [128, 128],
    }
    expect(read({ ...raw, quantization_config: fp8 }).fp8Block).toEqual([128, 128])
    expect(read({ ...raw, use_qk_norm: true, qkv_bias: false, shared_expert_intermediate_size: 0 })).toEqual(read(raw))
  })

  it('Qwen1.5-MoE-A2.7B', () => {
    const spec = read({
      ...inert,
      architectures: ['Qwen2MoeForCausalLM'],
      model_type: 'qwen2_moe',
      bos_token_id: 151643,
      eos_token_id: 151643,
      decoder_sparse_step: 1,
      hidden_size: 2048,
      intermediate_size: 5632,
      max_position_embeddings: 8192,
      max_window_layers: 21,
      moe_intermediate_size: 1408,
      norm_topk_prob: false,
      num_attention_heads: 16,
      num_experts: 60,
      num_experts_per_tok: 4,
      num_hidden_layers: 24,
      num_key_value_heads: 16,
      output_router_logits: false,
      rms_norm_eps: 1e-6,
      rope_theta: 1000000.0,
      router_aux_loss_coef: 0.001,
      shared_expert_intermediate_size: 5632,
      sliding_window: 32768,
      tie_word_embeddings: false,
      torch_dtype: 'bfloat16',
      use_sliding_window: false,
      vocab_size: 151936,
    })
    expect(spec.layers[0]!.ffn).toMatchObject({ shared: { intermediate: 5632, gated: true } })
    expect((spec.layers[0]!.attention as GqaSpec).window).toBeNull()
  })

  it('Mixtral-8x7B and OLMoE', () => {
    const common = {
      ...inert,
      hidden_size: 4096,
      max_position_embeddings: 32768,
      num_attention_heads: 32,
      num_hidden_layers: 32,
      output_router_logits: false,
      rms_norm_eps: 1e-5,
      tie_word_embeddings: false,
      torch_dtype: 'bfloat16',
    }
    const mixtral = read({
      ...common,
      architectures: ['MixtralForCausalLM'],
      model_type: 'mixtral',
      bos_token_id: 1,
      eos_token_id: 2,
      intermediate_size: 14336,
      num_experts_per_tok: 2,
      num_key_value_heads: 8,
      num_local_experts: 8,
      rope_theta: 1e6,
      router_aux_loss_coef: 0.02,
      sliding_window: null,
      vocab_size: 32000,
    })
    expect(mixtral.layers[0]!.attention).toMatchObject({ headDim: 128, kvHeads: 8 })
    const olmoe = read({
      ...common,
      architectures: ['OlmoeForCausalLM'],
      model_type: 'olmoe',
      attention_bias: false,
      clip_qkv: null,
      eos_token_id: 50279,
      hidden_size: 2048,
      intermediate_size: 1024,
      max_position_embeddings: 4096,
      norm_topk_prob: false,
      num_attention_heads: 16,
      num_experts: 64,
      num_experts_per_tok: 8,
      num_hidden_layers: 16,
      num_key_value_heads: 16,
      pad_token_id: 1,
      rope_scaling: null,
      rope_theta: 10000.0,
      router_aux_loss_coef: 0.01,
      vocab_size: 50304,
    })
    expect(olmoe.layers[0]!.attention).toMatchObject({ qkNorm: 'row', headDim: 128 })
  })

  it('GLM-4.5-Air', () => {
    const spec = read({
      ...inert,
      architectures: ['Glm4MoeForCausalLM'],
      model_type: 'glm4_moe',
      attention_bias: true,
      eos_token_id: [151329, 151336, 151338],
      pad_token_id: 151329,
      first_k_dense_replace: 1,
      head_dim: 128,
      hidden_size: 4096,
      intermediate_size: 10944,
      max_position_embeddings: 131072,
      moe_intermediate_size: 1408,
      n_group: 1,
      n_routed_experts: 128,
      n_shared_experts: 1,
      norm_topk_prob: true,
      num_attention_heads: 96,
      num_experts_per_tok: 8,
      num_hidden_layers: 46,
      num_key_value_heads: 8,
      num_nextn_predict_layers: 1,
      partial_rotary_factor: 0.5,
      rms_norm_eps: 1e-5,
      rope_scaling: null,
      rope_theta: 1000000,
      routed_scaling_factor: 1.0,
      tie_word_embeddings: false,
      topk_group: 1,
      torch_dtype: 'bfloat16',
      use_qk_norm: false,
      vocab_size: 151552,
    })
    expect(spec.eosTokenIds).toEqual([151329, 151336, 151338])
    expect(spec.layers[1]!.attention).toMatchObject({ qkNorm: 'none', qkvBias: true, rope: { width: 64 } })
  })

  it('gpt-oss-20b: read without its MXFP4, which is named', () => {
    const raw: Raw = {
      ...inert,
      architectures: ['GptOssForCausalLM'],
      model_type: 'gpt_oss',
      attention_bias: true,
      eos_token_id: 200002,
      experts_per_token: 4,
      head_dim: 64,
      hidden_size: 2880,
      initial_context_length: 4096,
      intermediate_size: 2880,
      layer_types: Array.from({ length: 24 }, (_, i) => (i % 2 === 0 ? 'sliding_attention' : 'full_attention')),
      max_position_embeddings: 131072,
      num_attention_heads: 64,
      num_experts_per_tok: 4,
      num_hidden_layers: 24,
      num_key_value_heads: 8,
      num_local_experts: 32,
      output_router_logits: false,
      pad_token_id: 199999,
      quantization_config: { modules_to_not_convert: ['model.layers.*.self_attn'], quant_method: 'mxfp4' },
      rms_norm_eps: 1e-5,
      rope_scaling: {
        beta_fast: 32.0,
        beta_slow: 1.0,
        factor: 32.0,
        original_max_position_embeddings: 4096,
        rope_type: 'yarn',
        truncate: false,
      },
      rope_theta: 150000,
      router_aux_loss_coef: 0.9,
      sliding_window: 128,
      swiglu_limit: 7.0,
      tie_word_embeddings: false,
      vocab_size: 201088,
    }
    expect(() => read(raw)).toThrow(ModelConfigError)
    expect(() => read(raw)).toThrow(/MXFP4 .*not read yet/)
    const spec = read({ ...raw, quantization_config: null })
    expect(spec.layers[0]!.ffn).toMatchObject({
      activation: { limit: 7, alpha: 1.702 },
      router: { experts: 32, topK: 4 },
    })
  })
})
