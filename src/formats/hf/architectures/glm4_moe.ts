// GLM-4.5 and 4.6: grouped-query attention that rotates half of each head, DeepSeek-V3's routing and layer order.
import { type ArchitectureReader, layersOf, readGqa, readGroups, readTopK } from '../common.js'
import { readDeepseekFfn, readNextnLayers } from '../mla.js'

export const readGlm4Moe: ArchitectureReader = (reader, base) => {
  reader.fixed('scoring_func', ['sigmoid'], 'GLM-4-MoE scores experts by sigmoid')
  reader.fixed('topk_method', ['noaux_tc'], 'GLM-4-MoE chooses with a correction bias (noaux_tc)')
  const gqa = readGqa(reader, base, {
    qkvBias: reader.bool('attention_bias', false),
    outputBias: false,
    qkNorm: reader.bool('use_qk_norm', false) ? 'head' : 'none',
    kvHeads: 8,
    partial: 0.5,
  })
  const ffn = readDeepseekFfn(reader, base, {
    firstDense: 1,
    sharedExperts: 1,
    correctionBias: true,
    router: experts => {
      const topK = readTopK(reader, experts)
      const { groups, topGroups } = readGroups(reader, experts, topK, { groups: 1, topGroups: 1 }, 'top2')
      const scale = reader.number('routed_scaling_factor', { min: 0, max: 1e6 }, 1)
      const normalize = reader.bool('norm_topk_prob', true)
      return { experts, topK, scoring: 'sigmoid', groups, topGroups, groupScore: 'top2', normalize, scale }
    },
  })
  const attention = { ...gqa, window: null }
  return { layers: layersOf(base, i => ({ attention, ffn: ffn[i]! })), nextnLayers: readNextnLayers(reader) }
}
