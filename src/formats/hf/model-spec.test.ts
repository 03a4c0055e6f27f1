// config.json to ModelSpec: all fixtures and the demo, old and new spelling, every field honoured or refused by name.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { GqaSpec, MlaSpec, ModelSpec, MoeFfnSpec } from '../model-spec.js'
import { ModelConfigError, modelSpecOf, NO_GENERATION_DEFAULTS, readGenerationConfig, readModelSpec } from './index.js'

type Raw = Record<string, unknown>
const FIXTURES = 'test/fixtures/checkpoints'
const NAMES = [
  'deepseek_v2',
  'deepseek_v3',
  'deepseek_v3_yarn_noqlora',
  'qwen2_moe',
  'qwen3_moe',
  'mixtral',
  'olmoe',
  'glm4_moe',
  'gpt_oss',
] as const
type Name = (typeof NAMES)[number]

const rawOf = (name: Name): Raw => JSON.parse(readFileSync(`${FIXTURES}/${name}/config.json`, 'utf8')) as Raw
const read = (name: Name, over: Raw = {}): ModelSpec =>
  modelSpecOf('config.json', { ...rawOf(name), ...over }, NO_GENERATION_DEFAULTS)
const without = (raw: Raw, ...names: string[]): Raw =>
  Object.fromEntries(Object.entries(raw).filter(([name]) => !names.includes(name)))

function refusal(run: () => unknown): ModelConfigError {
  try {
    run()
  } catch (error) {
    expect(error).toBeInstanceOf(ModelConfigError)
    return error as ModelConfigError
  }
  throw new Error('nothing was refused')
}

const moe = (spec: ModelSpec, layer: number): MoeFfnSpec => {
  const { ffn } = spec.layers[layer]!
  if (ffn.kind !== 'moe') throw new Error(`layer ${layer} is dense`)
  return ffn
}
const gqa = (spec: ModelSpec, layer = 0): GqaSpec => spec.layers[layer]!.attention as GqaSpec
const mla = (spec: ModelSpec, layer = 0): MlaSpec => spec.layers[layer]!.attention as MlaSpec
const kinds = (spec: ModelSpec): string => spec.layers.map(l => l.ffn.kind[0]).join('')

describe('the fixtures', () => {
  it.each(NAMES)('%s is read, its rotary frequencies decreasing from 1', name => {
    const { spec } = readModelSpec(`${FIXTURES}/${name}`)
    expect(spec).toMatchObject({ vocabSize: 160, hiddenSize: 64, eosTokenIds: [1], bosTokenId: 0, dtype: 'float32' })
    expect(spec.layers).toHaveLength(3)
    for (const { attention } of spec.layers) {
      const f = attention.rope.inverseFrequencies
      expect(f).toHaveLength(attention.rope.width / 2)
      expect(f[0]).toBe(1)
      for (let i = 1; i < f.length; i++) expect(f[i]!).toBeLessThan(f[i - 1]!)
    }
  })

  it('deepseek_v3', () => {
    const spec = read('deepseek_v3')
    expect(kinds(spec)).toBe('dmm')
    expect(spec.nextnLayers).toBe(1)
    expect(mla(spec)).toMatchObject({
      heads: 4,
      qLoraRank: 32,
      kvLoraRank: 16,
      nopeDim: 16,
      vDim: 16,
      scale: 24 ** -0.5,
    })
    expect(mla(spec).rope).toMatchObject({ width: 8, interleaved: true, attentionFactor: 1 })
    expect(moe(spec, 1)).toMatchObject({
      intermediate: 32,
      correctionBias: true,
      shared: { intermediate: 32, gated: false },
      router: {
        experts: 16,
        topK: 4,
        scoring: 'sigmoid',
        groups: 4,
        topGroups: 2,
        groupScore: 'top2',
        normalize: true,
        scale: 2.5,
      },
    })
    expect(mla(read('deepseek_v3_yarn_noqlora')).qLoraRank).toBeNull()
    expect(moe(read('deepseek_v3_yarn_noqlora'), 2).shared).toEqual({ intermediate: 64, gated: false })
  })

  it('deepseek_v2', () => {
    const spec = read('deepseek_v2')
    expect(moe(spec, 1).router).toEqual({
      experts: 16,
      topK: 4,
      scoring: 'softmax',
      groups: 4,
      topGroups: 2,
      groupScore: 'max',
      normalize: false,
      scale: 1.5,
    })
    expect(moe(spec, 1).correctionBias).toBe(false)
    expect(moe(read('deepseek_v2', { topk_method: 'greedy' }), 1).router).toMatchObject({ groups: 1, topGroups: 1 })
  })

  it('qwen2_moe and qwen3_moe', () => {
    const two = read('qwen2_moe')
    expect(gqa(two)).toMatchObject({
      heads: 4,
      kvHeads: 2,
      headDim: 16,
      qkvBias: true,
      outputBias: false,
      qkNorm: 'none',
      window: null,
    })
    expect(moe(two, 0)).toMatchObject({
      shared: { intermediate: 48, gated: true },
      router: { normalize: false, scale: 1 },
    })
    const three = read('qwen3_moe')
    expect(gqa(three)).toMatchObject({ qkvBias: false, qkNorm: 'head', window: null, scale: 0.25 })
    expect(moe(three, 0)).toMatchObject({
      shared: null,
      intermediate: 32,
      router: { experts: 8, topK: 2, normalize: true },
    })
  })

  it('mixtral, olmoe, glm4_moe, gpt_oss', () => {
    expect(gqa(read('mixtral'))).toMatchObject({ headDim: 16, qkNorm: 'none', window: null })
    expect(moe(read('mixtral'), 0)).toMatchObject({ intermediate: 96, router: { normalize: true, scoring: 'softmax' } })
    expect(gqa(read('olmoe'))).toMatchObject({ qkNorm: 'row', clipQkv: null, kvHeads: 2 })
    const glm = read('glm4_moe')
    expect(kinds(glm)).toBe('dmm')
    expect(gqa(glm)).toMatchObject({ qkNorm: 'head', outputBias: false, rope: { width: 8, interleaved: false } })
    expect(moe(glm, 1)).toMatchObject({ correctionBias: true, router: { groups: 1, scoring: 'sigmoid', scale: 1.5 } })
    const oss = read('gpt_oss')
    expect(oss.layers.map(l => (l.attention as GqaSpec).window)).toEqual([16, null, 16])
    expect(gqa(oss)).toMatchObject({ sinks: true, qkvBias: true, outputBias: true })
    expect(moe(oss, 0)).toMatchObject({
      activation: { kind: 'swiglu_clamped', limit: 7, alpha: 1.702 },
      routerBias: true,
      expertBias: true,
      router: { scoring: 'softmax_after_topk', normalize: false },
    })
  })

  it('the demo: old spelling, block FP8, tied', () => {
    const { spec, generation } = readModelSpec('models/demo')
    expect(spec).toMatchObject({ fp8Block: [128, 128], tieWordEmbeddings: true, dtype: 'bfloat16', nextnLayers: 0 })
    expect(generation).toMatchObject({ doSample: true, temperature: 0.8, topP: 0.95, topK: null, eosTokenIds: [1] })
  })
})

describe('spellings', () => {
  /** The fixture as transformers 4 wrote it. */
  function old(name: Name): Raw {
    const raw = rawOf(name)
    const { rope_type: type, rope_theta: theta, partial_rotary_factor: _, ...rest } = raw['rope_parameters'] as Raw
    const scaling = type === 'default' ? null : { type, ...rest }
    return {
      ...without(raw, 'rope_parameters', 'dtype', 'head_dim', 'qk_head_dim'),
      torch_dtype: 'float32',
      rope_theta: theta,
      rope_scaling: scaling,
      ...(raw['head_dim'] && raw['kv_lora_rank'] === undefined ? { head_dim: raw['head_dim'] } : {}),
    }
  }
  it.each(NAMES)('%s: old spelling gives the same spec', name => {
    expect(modelSpecOf('config.json', old(name), NO_GENERATION_DEFAULTS)).toEqual(read(name))
  })

  it('reads the number of experts in any spelling and refuses two that differ', () => {
    for (const name of ['num_experts', 'num_local_experts', 'n_routed_experts'])
      expect(
        moe(
          modelSpecOf('c', { ...without(rawOf('qwen3_moe'), 'num_local_experts'), [name]: 6 }, NO_GENERATION_DEFAULTS),
          0,
        ).router.experts,
      ).toBe(6)
    expect(refusal(() => read('qwen3_moe', { num_experts: 6 })).message).toMatch(/num_(local_)?experts/)
  })

  it('head_dim of DeepSeek decides nothing', () => {
    for (const headDim of [null, 8, 24, 16])
      expect(read('deepseek_v3', { head_dim: headDim })).toEqual(read('deepseek_v3'))
  })

  it('takes the architecture from the class name, else from model_type', () => {
    expect(read('deepseek_v3', { model_type: 'kimi_k2' }).architecture).toBe('deepseek_v3')
    expect(read('mixtral', { architectures: null }).architecture).toBe('mixtral')
    expect(refusal(() => read('mixtral', { model_type: 'olmoe' })).code).toBe('SY_MODEL_CONFIG_FIELD')
    const unknown = refusal(() => read('mixtral', { architectures: ['LlamaForCausalLM'], model_type: 'llama' }))
    expect(unknown.code).toBe('SY_MODEL_ARCHITECTURE')
    for (const name of ['deepseek_v2', 'gpt_oss', 'MixtralForCausalLM']) expect(unknown.message).toContain(name)
  })

  it('applies overrides, and merges end tokens of both files', () => {
    expect(
      readModelSpec(`${FIXTURES}/mixtral`, { num_experts_per_tok: 1, made_up: null }).spec.layers[0]!.ffn,
    ).toMatchObject({ router: { topK: 1 } })
    const generation = { ...NO_GENERATION_DEFAULTS, eosTokenIds: [7, 1] }
    expect(modelSpecOf('c', { ...rawOf('mixtral'), eos_token_id: [1, 2, -1] }, generation).eosTokenIds).toEqual([
      1, 2, 7,
    ])
    expect(readGenerationConfig(FIXTURES)).toEqual(NO_GENERATION_DEFAULTS)
  })

  it.each([
    [
      '{"temperature": "warm"}',
      'SY_MODEL_GENERATION_FIELD',
      'temperature: expected a number from 0 to 1000, found "warm"',
    ],
    ['{"eos_token_id": ["</s>"]}', 'SY_MODEL_GENERATION_FIELD', 'eos_token_id'],
    ['{"top_p": 0.9', 'SY_MODEL_GENERATION_UNREADABLE', 'expected a JSON object'],
  ])('a generation_config.json of %s is refused with what helps there', (text, code, problem) => {
    const dir = mkdtempSync(join(tmpdir(), 'switchyard-generation-'))
    try {
      writeFileSync(join(dir, 'generation_config.json'), text)
      const { message, remedy, ...error } = refusal(() => readGenerationConfig(dir))
      expect(error.code).toBe(code)
      expect(message).toContain('generation_config.json')
      expect(message).toContain(problem)
      // Overrides reach config.json only.
      expect(remedy).not.toContain('--json-model-override-args')
      expect(remedy).toContain('delete it')
    } finally {
      rmSync(dir, { recursive: true, force: true })
    }
  })
})

describe('fields that change the model', () => {
  it('which layers are sparse', () => {
    expect(kinds(read('qwen3_moe', { mlp_only_layers: [1] }))).toBe('mdm')
    expect(kinds(read('qwen3_moe', { decoder_sparse_step: 2 }))).toBe('dmd')
    expect(kinds(read('qwen2_moe', { decoder_sparse_step: 3, mlp_only_layers: [2] }))).toBe('ddd')
    expect(kinds(read('deepseek_v3', { first_k_dense_replace: 0, moe_layer_freq: 2 }))).toBe('mdm')
    expect(kinds(read('glm4_moe', { first_k_dense_replace: 3 }))).toBe('ddd')
  })

  it('windows', () => {
    const windows = (spec: ModelSpec): unknown[] => spec.layers.map(l => (l.attention as GqaSpec).window)
    expect(windows(read('mixtral', { sliding_window: 9 }))).toEqual([9, 9, 9])
    expect(windows(read('qwen3_moe', { use_sliding_window: true, sliding_window: 9 }))).toEqual([9, 9, 9])
    expect(windows(read('qwen3_moe', { sliding_window: 9, max_window_layers: 2 }))).toEqual([null, null, null])
    const use = { use_sliding_window: true, sliding_window: 9 }
    expect(windows(read('qwen2_moe', { ...use, layer_types: null }))).toEqual([9, null, 9])
    expect(windows(read('qwen2_moe', { ...use, layer_types: null, max_window_layers: 1 }))).toEqual([9, null, null])
    expect(
      windows(read('qwen2_moe', { ...use, layer_types: ['full_attention', 'sliding_attention', 'full_attention'] })),
    ).toEqual([null, 9, null])
    expect(windows(read('gpt_oss', { layer_types: null, sliding_window: 5 }))).toEqual([5, null, 5])
  })

  it.each<[Name, Raw, (spec: ModelSpec) => unknown, unknown]>([
    ['mixtral', { tie_word_embeddings: true }, s => s.tieWordEmbeddings, true],
    ['qwen3_moe', { norm_topk_prob: false }, s => moe(s, 0).router.normalize, false],
    ['olmoe', { norm_topk_prob: true }, s => moe(s, 0).router.normalize, true],
    ['olmoe', { clip_qkv: 0.5 }, s => gqa(s).clipQkv, 0.5],
    ['olmoe', { attention_bias: true }, s => [gqa(s).qkvBias, gqa(s).outputBias], [true, true]],
    ['qwen2_moe', { qkv_bias: false }, s => gqa(s).qkvBias, false],
    ['qwen3_moe', { attention_bias: true }, s => [gqa(s).qkvBias, gqa(s).outputBias], [true, true]],
    ['deepseek_v3', { attention_bias: true }, s => [mla(s).qkvBias, mla(s).outputBias], [true, true]],
    ['glm4_moe', { attention_bias: true }, s => [gqa(s).qkvBias, gqa(s).outputBias], [true, false]],
    ['glm4_moe', { use_qk_norm: false }, s => gqa(s).qkNorm, 'none'],
    ['deepseek_v3', { rope_interleave: false }, s => mla(s).rope.interleaved, false],
    ['deepseek_v3', { n_group: null, topk_group: null }, s => moe(s, 1).router.groups, 1],
    ['deepseek_v3', { n_shared_experts: 0 }, s => moe(s, 1).shared, null],
    ['deepseek_v3', { routed_scaling_factor: 1.25 }, s => moe(s, 1).router.scale, 1.25],
    ['deepseek_v3', { rms_norm_eps: 1e-5 }, s => s.normEps, 1e-5],
    ['gpt_oss', { swiglu_limit: 3 }, s => moe(s, 0).activation, { kind: 'swiglu_clamped', limit: 3, alpha: 1.702 }],
    ['mixtral', { head_dim: 32 }, s => [gqa(s).headDim, gqa(s).scale], [32, 32 ** -0.5]],
  ])('%s %j', (name, over, pick, expected) => {
    expect(pick(read(name))).not.toEqual(expected)
    expect(pick(read(name, over))).toEqual(expected)
  })
})

describe('refusals name the field', () => {
  it.each<[Name, Raw, RegExp]>([
    ['mixtral', { hidden_size: -1 }, /hidden_size: .*found -1/],
    ['mixtral', { hidden_size: 64.5 }, /hidden_size/],
    ['mixtral', { hidden_size: '64' }, /hidden_size: .*"64"/],
    ['mixtral', { num_hidden_layers: 1e12 }, /num_hidden_layers/],
    ['mixtral', { vocab_size: null }, /vocab_size/],
    ['mixtral', { num_experts_per_tok: 9 }, /num_experts_per_tok: expected at most .*8.*found 9/],
    ['mixtral', { num_key_value_heads: 3 }, /num_key_value_heads: expected a divisor/],
    ['mixtral', { num_attention_heads: 6, num_key_value_heads: 2 }, /num_attention_heads/],
    ['mixtral', { head_dim: 15 }, /head_dim: expected an even/],
    ['mixtral', { hidden_act: 'gelu' }, /hidden_act = "gelu" is not supported/],
    ['mixtral', { attention_bias: true }, /attention_bias = true/],
    ['mixtral', { partial_rotary_factor: 0.5 }, /partial_rotary_factor/],
    ['mixtral', { is_encoder_decoder: true }, /is_encoder_decoder/],
    ['mixtral', { norm_topk_prob: false }, /norm_topk_prob/],
    ['mixtral', { dtype: 'int4' }, /dtype/],
    ['mixtral', { eos_token_id: 'x' }, /eos_token_id/],
    ['deepseek_v3', { n_group: 5 }, /n_group: expected a divisor/],
    ['deepseek_v3', { n_group: 16, topk_group: 8 }, /n_group: .*two experts/],
    ['deepseek_v3', { topk_group: 5 }, /topk_group/],
    ['deepseek_v3', { topk_group: 1, num_experts_per_tok: 5 }, /num_experts_per_tok: expected at most 4/],
    ['deepseek_v3', { scoring_func: 'softmax' }, /scoring_func/],
    ['deepseek_v3', { topk_method: 'greedy' }, /topk_method/],
    ['deepseek_v3', { qk_rope_head_dim: 7, qk_head_dim: null, head_dim: null }, /qk_rope_head_dim/],
    ['deepseek_v3', { qk_head_dim: 25 }, /qk_head_dim/],
    ['deepseek_v3', { num_key_value_heads: 2 }, /num_key_value_heads/],
    ['deepseek_v2', { topk_method: 'noaux_tc' }, /topk_method/],
    ['deepseek_v2', { norm_topk_prob: true }, /norm_topk_prob/],
    ['deepseek_v2', { mlp_bias: true }, /mlp_bias/],
    ['qwen3_moe', { use_sliding_window: true, sliding_window: null }, /sliding_window/],
    ['qwen3_moe', { use_sliding_window: true, sliding_window: 4, max_window_layers: 2 }, /max_window_layers/],
    ['qwen3_moe', { layer_types: ['full_attention', 'sliding_attention', 'full_attention'] }, /layer_types/],
    ['qwen3_moe', { mlp_only_layers: [3] }, /mlp_only_layers/],
    ['qwen2_moe', { layer_types: ['full_attention'] }, /layer_types: expected a list of 3/],
    ['qwen2_moe', { layer_types: ['a', 'b', 'c'] }, /layer_types/],
    ['qwen2_moe', { layer_types: ['sliding_attention', 'full_attention', 'full_attention'] }, /layer_types/],
    ['olmoe', { head_dim: 32 }, /head_dim/],
    ['gpt_oss', { sliding_window: null }, /sliding_window/],
    ['gpt_oss', { experts_per_token: 3 }, /experts_per_token/],
    ['mixtral', { quantization_config: { quant_method: 'mxfp4' } }, /mxfp4 are not read yet/],
    ['mixtral', { quantization_config: { quant_method: 'gptq', bits: 4 } }, /gptq/],
    ['mixtral', { quantization_config: { quant_method: 'awq' } }, /awq/],
    ['mixtral', { quantization_config: { quant_method: 'fp8' } }, /weight_block_size/],
    ['mixtral', { quantization_config: { quant_method: 'fp8', weight_block_size: [0, 1] } }, /weight_block_size/],
    ['mixtral', { quantization_config: { quant_method: 'fp8', weight_block_size: [128, 128], fmt: 'e5m2' } }, /fmt/],
    ['mixtral', { rope_parameters: { rope_type: 'dynamic', factor: 2 } }, /rope_parameters\.rope_type = "dynamic"/],
    ['mixtral', { rope_parameters: { rope_type: 'longrope' } }, /longrope/],
    ['mixtral', { rope_parameters: { rope_type: 'spiral' } }, /spiral/],
    ['mixtral', { rope_parameters: { rope_type: 'linear' } }, /rope_parameters\.factor/],
    ['mixtral', { rope_parameters: { rope_type: 'default', mrope_section: [1, 2] } }, /rope_parameters\.mrope_section/],
    ['mixtral', { rope_theta: 5 }, /rope_theta/],
    [
      'mixtral',
      { rope_parameters: { full_attention: { rope_theta: 1e4 }, sliding_attention: { rope_theta: 1e6 } } },
      /differ by kind of layer/,
    ],
  ])('%s %j', (name, over, message) => {
    const error = refusal(() => read(name, over))
    expect(error.message).toMatch(message)
    expect(error.message).toContain('config.json')
  })

  it('an unknown field with a value, with the override that sets it aside; empty values pass', () => {
    const error = refusal(() => read('mixtral', { attention_twist: 3, other: 'x' }))
    expect(error.code).toBe('SY_MODEL_CONFIG_UNKNOWN')
    expect(error.message).toContain('attention_twist = 3; other = "x"')
    expect(error.remedy).toContain(`--json-model-override-args '{"attention_twist":null,"other":null}'`)
    for (const nothing of [null, false, 0, '', [], {}])
      expect(() => read('mixtral', { attention_twist: nothing })).not.toThrow()
  })

  it('identical rotary parameters per kind of layer are one', () => {
    const one = { rope_type: 'default', rope_theta: 1e6 }
    expect(read('mixtral', { rope_parameters: { full_attention: one, sliding_attention: { ...one } } })).toEqual(
      read('mixtral'),
    )
  })

  it('property: one field replaced by anything is read or refused as ModelConfigError', () => {
    const value = fc.oneof(fc.jsonValue(), fc.integer(), fc.double(), fc.constantFrom(-1, 1e300, 2 ** 53, [], {}))
    fc.assert(
      fc.property(fc.constantFrom(...NAMES), fc.nat(), value, (name, pick, replaced) => {
        const raw = rawOf(name)
        const fields = Object.keys(raw)
        try {
          modelSpecOf('c', { ...raw, [fields[pick % fields.length]!]: replaced }, NO_GENERATION_DEFAULTS)
        } catch (error) {
          expect(error).toBeInstanceOf(ModelConfigError)
        }
      }),
      { numRuns: 400, seed: 1 },
    )
  })
})
