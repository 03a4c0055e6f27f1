// Qwen2-MoE (and Qwen1.5-MoE) and Qwen3-MoE: softmax routing over all experts; the older one has query/key/value biases and a
// gated shared expert, the newer one a norm per head. They also differ in which layers a sliding window reaches.
import type { GqaSpec, MoeFfnSpec } from '../../model-spec.js'
import {
  type ArchitectureReader,
  type Base,
  denseFfn,
  ffnOf,
  LAYER_TYPES,
  layersOf,
  readExperts,
  readGqa,
  readSilu,
  readSparseStep,
  readTopK,
  SIDE,
  SILU,
  softmaxRouter,
  WINDOW,
} from '../common.js'
import type { ConfigReader } from '../config-reader.js'

const MAX_WINDOW_LAYERS = { min: 0, max: 65536 }

export const readQwen2Moe: ArchitectureReader = (reader, base) => {
  const gqa = readGqa(reader, base, { qkvBias: reader.bool('qkv_bias', true), outputBias: false, qkNorm: 'none' })
  const sharedWidth = reader.int('shared_expert_intermediate_size', { min: 0, max: SIDE.max }, 5632)
  const shared = sharedWidth === 0 ? null : { intermediate: sharedWidth, gated: true }
  const ffn = readFfn(reader, base, shared)
  const windows = qwen2Windows(reader, base)
  const attention = windows.map((window): GqaSpec => ({ ...gqa, window }))
  return { layers: layersOf(base, i => ({ attention: attention[i]!, ffn: ffn[i]! })), nextnLayers: 0 }
}

export const readQwen3Moe: ArchitectureReader = (reader, base) => {
  reader.fixed('use_qk_norm', [true], 'Qwen3-MoE always normalises queries and keys')
  const bias = reader.bool('attention_bias', false)
  const gqa = readGqa(reader, base, { qkvBias: bias, outputBias: bias, qkNorm: 'head', kvHeads: 4 })
  const ffn = readFfn(reader, base, null)
  const attention: GqaSpec = { ...gqa, window: qwen3Window(reader, base) }
  return { layers: layersOf(base, i => ({ attention, ffn: ffn[i]! })), nextnLayers: 0 }
}

function readFfn(reader: ConfigReader, base: Base, shared: MoeFfnSpec['shared']): ReturnType<typeof ffnOf> {
  readSilu(reader)
  const experts = readExperts(reader)
  const topK = readTopK(reader, experts)
  const moe: MoeFfnSpec = {
    kind: 'moe',
    intermediate: reader.int('moe_intermediate_size', SIDE),
    activation: SILU,
    router: softmaxRouter(experts, topK, reader.bool('norm_topk_prob', false)),
    correctionBias: false,
    routerBias: false,
    expertBias: false,
    shared,
  }
  const denseWidth = reader.nullableInt('intermediate_size', SIDE, null)
  return ffnOf(base, readSparseStep(reader, base), moe, () =>
    denseFfn(denseWidth ?? reader.refuse('intermediate_size', 'the width of the dense layers', null)),
  )
}

/** Qwen2-MoE: layer_types, else every other layer below max_window_layers (layers 0, 2, …) when use_sliding_window. */
function qwen2Windows(reader: ConfigReader, base: Base): (number | null)[] {
  const use = reader.bool('use_sliding_window', false)
  const window = reader.nullableInt('sliding_window', { min: 0, max: WINDOW.max }, 4096)
  const below = reader.int('max_window_layers', MAX_WINDOW_LAYERS, 28)
  const types =
    reader.layerList('layer_types', base.layerCount, LAYER_TYPES) ??
    Array.from({ length: base.layerCount }, (_, i) =>
      use && i % 2 === 0 && i < below ? 'sliding_attention' : 'full_attention',
    )
  if (!types.includes('sliding_attention')) return types.map(() => null)
  if (!use)
    reader.refuse('layer_types', 'full_attention only, since use_sliding_window is not set', 'sliding_attention')
  if (!window) return reader.refuse('sliding_window', 'a window in positions, since some layers slide', window)
  return types.map(type => (type === 'sliding_attention' ? window : null))
}

/** Qwen3-MoE: one window on all layers when use_sliding_window. A border between layers is read differently by others. */
function qwen3Window(reader: ConfigReader, base: Base): number | null {
  const use = reader.bool('use_sliding_window', false)
  const window = reader.nullableInt('sliding_window', { min: 0, max: WINDOW.max }, 4096)
  const below = reader.nullableInt('max_window_layers', MAX_WINDOW_LAYERS, null)
  const types = reader.layerList('layer_types', base.layerCount, LAYER_TYPES)
  const expected = use ? 'sliding_attention' : 'full_attention'
  if (types?.some(type => type !== expected))
    reader.unsupported(
      'layer_types',
      types.find(type => type !== expected),
      `Qwen3-MoE has ${expected} on all layers here`,
    )
  if (!use) return null
  if (below)
    reader.unsupported('max_window_layers', below, 'implementations disagree on which side of it the window applies')
  return window || reader.refuse('sliding_window', 'a window in positions, since use_sliding_window is set', window)
}
