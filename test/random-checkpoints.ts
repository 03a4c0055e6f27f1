// Random checkpoints of any architecture and size, named and shaped as Hugging Face writes them. The names stand here a second
// time on purpose: a mistake in the models' wiring cannot repeat itself.
import type { TensorToWrite } from '../src/formats/safetensors/index.js'
import { CounterRandom } from '../src/runtime/random.js'

type Json = Record<string, unknown>

export interface RandomCheckpoint {
  readonly architecture:
    | 'deepseek_v2'
    | 'deepseek_v3'
    | 'qwen2_moe'
    | 'qwen3_moe'
    | 'mixtral'
    | 'olmoe'
    | 'glm4_moe'
    | 'gpt_oss'
  readonly seed?: number
  /** Fields of config.json that replace the odd sizes chosen here. */
  readonly config?: Json
}

const CLASSES = {
  deepseek_v2: 'DeepseekV2ForCausalLM',
  deepseek_v3: 'DeepseekV3ForCausalLM',
  qwen2_moe: 'Qwen2MoeForCausalLM',
  qwen3_moe: 'Qwen3MoeForCausalLM',
  mixtral: 'MixtralForCausalLM',
  olmoe: 'OlmoeForCausalLM',
  glm4_moe: 'Glm4MoeForCausalLM',
  gpt_oss: 'GptOssForCausalLM',
} as const

/** Sizes that no kernel likes: 5 heads, hidden 80, 10 or 24 experts, a vocabulary of 131. */
export function randomConfig({ architecture, config }: RandomCheckpoint): Json {
  const common = {
    architectures: [CLASSES[architecture]],
    model_type: architecture,
    vocab_size: 131,
    hidden_size: 80,
    num_hidden_layers: 3,
    num_attention_heads: 5,
    num_key_value_heads: 5,
    max_position_embeddings: 128,
    rms_norm_eps: 1e-5,
    hidden_act: 'silu',
    tie_word_embeddings: false,
    bos_token_id: 0,
    eos_token_id: 1,
    torch_dtype: 'float32',
    rope_theta: 10_000,
  }
  const latent = {
    intermediate_size: 72,
    moe_intermediate_size: 24,
    n_routed_experts: 24,
    n_shared_experts: 1,
    num_experts_per_tok: 3,
    n_group: 4,
    topk_group: 2,
    first_k_dense_replace: 1,
    norm_topk_prob: architecture !== 'deepseek_v2',
    routed_scaling_factor: 1.5,
    q_lora_rank: 20,
    kv_lora_rank: 24,
    qk_nope_head_dim: 12,
    qk_rope_head_dim: 6,
    v_head_dim: 10,
    attention_bias: false,
  }
  const own: Record<RandomCheckpoint['architecture'], Json> = {
    deepseek_v2: { ...latent, topk_method: 'group_limited_greedy' },
    deepseek_v3: latent,
    qwen2_moe: {
      intermediate_size: 72,
      moe_intermediate_size: 24,
      shared_expert_intermediate_size: 40,
      num_experts: 10,
      num_experts_per_tok: 3,
      norm_topk_prob: false,
      decoder_sparse_step: 1,
      mlp_only_layers: [1],
      qkv_bias: true,
    },
    qwen3_moe: {
      intermediate_size: 72,
      moe_intermediate_size: 24,
      num_experts: 10,
      num_experts_per_tok: 3,
      norm_topk_prob: true,
      decoder_sparse_step: 1,
      mlp_only_layers: [0],
      head_dim: 18,
      attention_bias: false,
    },
    mixtral: {
      intermediate_size: 56,
      num_local_experts: 10,
      num_experts_per_tok: 2,
      num_key_value_heads: 1,
      sliding_window: null,
    },
    olmoe: {
      intermediate_size: 24,
      num_experts: 10,
      num_experts_per_tok: 4,
      norm_topk_prob: false,
      clip_qkv: 1.5,
      attention_bias: false,
    },
    glm4_moe: {
      intermediate_size: 72,
      moe_intermediate_size: 24,
      n_routed_experts: 10,
      n_shared_experts: 1,
      num_experts_per_tok: 3,
      n_group: 1,
      topk_group: 1,
      first_k_dense_replace: 1,
      norm_topk_prob: true,
      routed_scaling_factor: 1.25,
      head_dim: 20,
      num_key_value_heads: 1,
      use_qk_norm: true,
      attention_bias: true,
      partial_rotary_factor: 0.5,
    },
    gpt_oss: {
      intermediate_size: 24,
      num_local_experts: 10,
      num_experts_per_tok: 3,
      head_dim: 14,
      num_key_value_heads: 1,
      sliding_window: 9,
      attention_bias: true,
      rope_scaling: {
        rope_type: 'yarn',
        factor: 8,
        beta_fast: 32,
        beta_slow: 1,
        truncate: false,
        original_max_position_embeddings: 64,
      },
    },
  }
  return { ...common, ...own[architecture], ...config }
}

type Shapes = Map<string, readonly number[]>

/** Name and shape of every tensor of the model that `config` describes. */
export function tensorShapes(config: Json): Shapes {
  const shapes: Shapes = new Map()
  const n = (name: string): number => config[name] as number
  const hidden = n('hidden_size')
  shapes.set('model.embed_tokens.weight', [n('vocab_size'), hidden])
  shapes.set('model.norm.weight', [hidden])
  if (config['tie_word_embeddings'] !== true) shapes.set('lm_head.weight', [n('vocab_size'), hidden])
  for (let layer = 0; layer < n('num_hidden_layers'); layer++) {
    const p = `model.layers.${layer}`
    shapes.set(`${p}.input_layernorm.weight`, [hidden])
    shapes.set(`${p}.post_attention_layernorm.weight`, [hidden])
    if (config['kv_lora_rank'] !== undefined) addLatentAttention(shapes, `${p}.self_attn`, config)
    else addAttention(shapes, `${p}.self_attn`, config)
    addFeedForward(shapes, p, config, layer)
  }
  return shapes
}

function linear(shapes: Shapes, name: string, n: number, k: number, bias = false): void {
  shapes.set(`${name}.weight`, [n, k])
  if (bias) shapes.set(`${name}.bias`, [n])
}

function addLatentAttention(shapes: Shapes, p: string, config: Json): void {
  const n = (name: string): number => config[name] as number
  const [hidden, heads, latent, rope] = [
    n('hidden_size'),
    n('num_attention_heads'),
    n('kv_lora_rank'),
    n('qk_rope_head_dim'),
  ]
  const qk = n('qk_nope_head_dim') + rope
  const bias = config['attention_bias'] === true
  const qRank = config['q_lora_rank'] as number | null
  if (qRank === null) linear(shapes, `${p}.q_proj`, heads * qk, hidden)
  else {
    linear(shapes, `${p}.q_a_proj`, qRank, hidden, bias)
    shapes.set(`${p}.q_a_layernorm.weight`, [qRank])
    linear(shapes, `${p}.q_b_proj`, heads * qk, qRank)
  }
  linear(shapes, `${p}.kv_a_proj_with_mqa`, latent + rope, hidden, bias)
  shapes.set(`${p}.kv_a_layernorm.weight`, [latent])
  linear(shapes, `${p}.kv_b_proj`, heads * (n('qk_nope_head_dim') + n('v_head_dim')), latent)
  linear(shapes, `${p}.o_proj`, hidden, heads * n('v_head_dim'), bias)
}

function addAttention(shapes: Shapes, p: string, config: Json): void {
  const n = (name: string): number => config[name] as number
  const type = config['model_type']
  const [hidden, heads, kvHeads] = [n('hidden_size'), n('num_attention_heads'), n('num_key_value_heads')]
  const headDim = (config['head_dim'] as number | undefined) ?? hidden / heads
  const inBias = config['attention_bias'] === true || config['qkv_bias'] === true
  const outBias = config['attention_bias'] === true && type !== 'glm4_moe'
  linear(shapes, `${p}.q_proj`, heads * headDim, hidden, inBias)
  linear(shapes, `${p}.k_proj`, kvHeads * headDim, hidden, inBias)
  linear(shapes, `${p}.v_proj`, kvHeads * headDim, hidden, inBias)
  linear(shapes, `${p}.o_proj`, hidden, heads * headDim, outBias)
  if (type === 'gpt_oss') shapes.set(`${p}.sinks`, [heads])
  if (type === 'qwen3_moe' || config['use_qk_norm'] === true)
    for (const norm of ['q_norm', 'k_norm']) shapes.set(`${p}.${norm}.weight`, [headDim])
  if (type === 'olmoe') {
    shapes.set(`${p}.q_norm.weight`, [heads * headDim])
    shapes.set(`${p}.k_norm.weight`, [kvHeads * headDim])
  }
}

function addFeedForward(shapes: Shapes, layerPrefix: string, config: Json, layer: number): void {
  const n = (name: string): number => config[name] as number
  const type = config['model_type']
  const hidden = n('hidden_size')
  const mlp = (prefix: string, width: number, names = ['gate_proj', 'up_proj', 'down_proj']): void => {
    linear(shapes, `${prefix}.${names[0]}`, width, hidden)
    linear(shapes, `${prefix}.${names[1]}`, width, hidden)
    linear(shapes, `${prefix}.${names[2]}`, hidden, width)
  }
  const experts = (config['n_routed_experts'] ?? config['num_local_experts'] ?? config['num_experts']) as number
  const p = `${layerPrefix}.mlp`
  if (type === 'gpt_oss') {
    const width = n('intermediate_size')
    linear(shapes, `${p}.router`, experts, hidden, true)
    shapes.set(`${p}.experts.gate_up_proj`, [experts, hidden, 2 * width])
    shapes.set(`${p}.experts.gate_up_proj_bias`, [experts, 2 * width])
    shapes.set(`${p}.experts.down_proj`, [experts, width, hidden])
    shapes.set(`${p}.experts.down_proj_bias`, [experts, hidden])
    return
  }
  if (type === 'mixtral') {
    linear(shapes, `${layerPrefix}.block_sparse_moe.gate`, experts, hidden)
    for (let e = 0; e < experts; e++)
      mlp(`${layerPrefix}.block_sparse_moe.experts.${e}`, n('intermediate_size'), ['w1', 'w3', 'w2'])
    return
  }
  const onlyDense = (config['mlp_only_layers'] as number[] | undefined)?.includes(layer) ?? false
  const step = (config['decoder_sparse_step'] as number | undefined) ?? 1
  const firstSparse = (config['first_k_dense_replace'] as number | undefined) ?? 0
  if (onlyDense || (layer + 1) % step !== 0 || layer < firstSparse) {
    mlp(p, n('intermediate_size'))
    return
  }
  const width = type === 'olmoe' ? n('intermediate_size') : n('moe_intermediate_size')
  linear(shapes, `${p}.gate`, experts, hidden)
  if (type === 'deepseek_v3' || type === 'glm4_moe') shapes.set(`${p}.gate.e_score_correction_bias`, [experts])
  for (let e = 0; e < experts; e++) mlp(`${p}.experts.${e}`, width)
  const shared = (config['n_shared_experts'] as number | undefined) ?? 0
  if (shared > 0) mlp(`${p}.shared_experts`, shared * width)
  if (type === 'qwen2_moe') {
    mlp(`${p}.shared_expert`, n('shared_expert_intermediate_size'))
    linear(shapes, `${p}.shared_expert_gate`, 1, hidden)
  }
}

/** Norms near 1, everything else normal with deviation 0.12, so that logits spread as the fixtures' do. */
export function randomTensors(config: Json, seed: number): Map<string, TensorToWrite> {
  const tensors = new Map<string, TensorToWrite>()
  const random = new CounterRandom(seed, 77)
  const normal = (): number => Math.sqrt(-2 * Math.log(1 - random.unit())) * Math.cos(2 * Math.PI * random.unit())
  for (const [name, shape] of tensorShapes(config)) {
    const data = new Float32Array(shape.reduce((a, b) => a * b, 1))
    const centre = name.includes('norm') ? 1 : 0
    for (let i = 0; i < data.length; i++) data[i] = centre + 0.12 * normal()
    tensors.set(name, { dtype: 'F32', shape, data })
  }
  return tensors
}
