// Mixtral: grouped-query attention without biases, maybe one sliding window on all layers; every layer sparse; the chosen
// weights always divided by their sum. Experts are called w1 (gate), w3 (up), w2 (down) in its checkpoints.
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
  WINDOW,
} from '../common.js'

export const readMixtral: ArchitectureReader = (reader, base) => {
  readSilu(reader)
  reader.fixed('norm_topk_prob', [true], 'Mixtral always divides the chosen weights by their sum')
  const gqa = readGqa(reader, base, {
    qkvBias: false,
    outputBias: false,
    qkNorm: 'none',
    kvHeads: 8,
    defaultTheta: 1_000_000,
  })
  const experts = readExperts(reader)
  const ffn = {
    kind: 'moe' as const,
    intermediate: reader.int('intermediate_size', SIDE),
    activation: SILU,
    router: softmaxRouter(experts, readTopK(reader, experts), true),
    correctionBias: false,
    routerBias: false,
    expertBias: false,
    shared: null,
  }
  const attention = { ...gqa, window: reader.nullableInt('sliding_window', WINDOW, null) }
  return { layers: layersOf(base, () => ({ attention, ffn })), nextnLayers: 0 }
}
