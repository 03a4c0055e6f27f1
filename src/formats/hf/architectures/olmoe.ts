// OLMoE: a norm over the whole query and key rows, then an optional clamp of q, k and v; every layer sparse, softmax routing.
import {
  type ArchitectureReader,
  layersOf,
  readExperts,
  readGqa,
  readSilu,
  readTopK,
  SIDE,
  SILU,
  softmaxRouter,
} from '../common.js'

export const readOlmoe: ArchitectureReader = (reader, base) => {
  readSilu(reader)
  reader.fixed('sliding_window', [], 'OLMoE attends to all positions')
  const bias = reader.bool('attention_bias', false)
  const gqa = readGqa(reader, base, {
    qkvBias: bias,
    outputBias: bias,
    qkNorm: 'row',
    clipQkv: reader.nullableNumber('clip_qkv', { min: 1e-6, max: 1e9 }, null),
  })
  if (gqa.heads * gqa.headDim !== base.hiddenSize)
    reader.refuse('head_dim', `hidden_size / num_attention_heads (${base.hiddenSize / gqa.heads})`, gqa.headDim)
  const experts = readExperts(reader)
  const topK = readTopK(reader, experts)
  const ffn = {
    kind: 'moe' as const,
    intermediate: reader.int('intermediate_size', SIDE),
    activation: SILU,
    router: softmaxRouter(experts, topK, reader.bool('norm_topk_prob', false)),
    correctionBias: false,
    routerBias: false,
    expertBias: false,
    shared: null,
  }
  const attention = { ...gqa, window: null }
  return { layers: layersOf(base, () => ({ attention, ffn })), nextnLayers: 0 }
}
