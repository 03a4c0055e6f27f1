// gpt-oss: sinks, a window on every other layer, biases everywhere (router and experts too), softmax over the chosen logits,
// a clamped activation. Where the config is silent: limit 7, alpha 1.702, and YaRN from 4,096 to 131,072 positions.
import type { GqaSpec } from '../../model-spec.js'
import {
  type ArchitectureReader,
  LAYER_TYPES,
  layersOf,
  readExperts,
  readGqa,
  readSilu,
  readTopK,
  SIDE,
  WINDOW,
} from '../common.js'

const ROPE_DEFAULTS = {
  rope_type: 'yarn',
  factor: 32,
  beta_fast: 32,
  beta_slow: 1,
  truncate: false,
  original_max_position_embeddings: 4096,
}

export const readGptOss: ArchitectureReader = (reader, base) => {
  readSilu(reader)
  // The context before YaRN, which the rotary parameters hold as well.
  reader.inert('initial_context_length')
  const bias = reader.bool('attention_bias', true)
  const gqa = readGqa(reader, base, {
    qkvBias: bias,
    outputBias: bias,
    qkNorm: 'none',
    sinks: true,
    kvHeads: 8,
    headDim: 64,
    defaultTheta: 150_000,
    ropeDefaults: ROPE_DEFAULTS,
  })
  const experts = readExperts(reader)
  const ffn = {
    kind: 'moe' as const,
    intermediate: reader.int('intermediate_size', SIDE),
    activation: {
      kind: 'swiglu_clamped' as const,
      limit: reader.number('swiglu_limit', { min: 1e-6, max: 1e9 }, 7),
      alpha: reader.number(['hidden_act_alpha', 'swiglu_alpha'], { min: 1e-6, max: 1e9 }, 1.702),
    },
    router: {
      experts,
      topK: readTopK(reader, experts, ['num_experts_per_tok', 'experts_per_token']),
      scoring: 'softmax_after_topk' as const,
      groups: 1,
      topGroups: 1,
      groupScore: 'max' as const,
      normalize: false,
      scale: 1,
    },
    correctionBias: false,
    routerBias: true,
    expertBias: true,
    shared: null,
  }
  const window = reader.nullableInt('sliding_window', WINDOW, 128)
  const types =
    reader.layerList('layer_types', base.layerCount, LAYER_TYPES) ??
    Array.from({ length: base.layerCount }, (_, i) => (i % 2 === 0 ? 'sliding_attention' : 'full_attention'))
  if (window === null && types.includes('sliding_attention'))
    reader.refuse('sliding_window', 'a window in positions, since some layers slide', window)
  const sliding: GqaSpec = { ...gqa, window }
  const full: GqaSpec = { ...gqa, window: null }
  return {
    layers: layersOf(base, i => ({ attention: types[i] === 'sliding_attention' ? sliding : full, ffn })),
    nextnLayers: 0,
  }
}
