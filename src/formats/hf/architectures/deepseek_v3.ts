// DeepSeek-V3 (and R1, V3.1, Kimi-K2 under its class name): latent attention, sigmoid scores with a bias for the choice only,
// groups scored by their two best.
import { type ArchitectureReader, layersOf, readGroups, readTopK } from '../common.js'
import { readDeepseekFfn, readMla, readNextnLayers } from '../mla.js'

export const readDeepseekV3: ArchitectureReader = (reader, base) => {
  reader.fixed('scoring_func', ['sigmoid'], 'DeepSeek-V3 scores experts by sigmoid')
  reader.fixed('topk_method', ['noaux_tc'], 'DeepSeek-V3 chooses with a correction bias (noaux_tc)')
  const attention = readMla(reader, base, reader.bool('rope_interleave', true))
  const ffn = readDeepseekFfn(reader, base, {
    firstDense: 3,
    sharedExperts: 1,
    correctionBias: true,
    router: experts => {
      const topK = readTopK(reader, experts)
      const { groups, topGroups } = readGroups(reader, experts, topK, { groups: 8, topGroups: 4 }, 'top2')
      const scale = reader.number('routed_scaling_factor', { min: 0, max: 1e6 }, 2.5)
      const normalize = reader.bool('norm_topk_prob', true)
      return { experts, topK, scoring: 'sigmoid', groups, topGroups, groupScore: 'top2', normalize, scale }
    },
  })
  return { layers: layersOf(base, i => ({ attention, ffn: ffn[i]! })), nextnLayers: readNextnLayers(reader) }
}
