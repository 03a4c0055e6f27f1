// DeepSeek-V2: latent attention, softmax routing, groups scored by their best expert, weights never divided by their sum.
import { type ArchitectureReader, layersOf, readGroups, readTopK } from '../common.js'
import { readDeepseekFfn, readMla } from '../mla.js'

export const readDeepseekV2: ArchitectureReader = (reader, base) => {
  reader.fixed('rope_interleave', [true], 'DeepSeek-V2 always rotates interleaved pairs')
  reader.fixed('scoring_func', ['softmax'], 'DeepSeek-V2 scores experts by softmax')
  reader.fixed(
    'norm_topk_prob',
    [false],
    'implementations disagree on what DeepSeek-V2 does with it, so the result would be a guess',
  )
  if (reader.bool('mlp_bias', false)) reader.unsupported('mlp_bias', true, 'biases of shared experts are not computed')
  const attention = readMla(reader, base, true)
  const ffn = readDeepseekFfn(reader, base, {
    firstDense: 0,
    sharedExperts: 2,
    correctionBias: false,
    router: experts => {
      const topK = readTopK(reader, experts)
      const scale = reader.number('routed_scaling_factor', { min: 0, max: 1e6 }, 1)
      const method = reader.string('topk_method', 'greedy')
      if (method !== 'greedy' && method !== 'group_limited_greedy')
        reader.unsupported('topk_method', method, 'read are greedy and group_limited_greedy')
      const limited = method === 'group_limited_greedy'
      if (!limited) reader.inert('n_group', 'topk_group')
      const { groups, topGroups } = limited
        ? readGroups(reader, experts, topK, { groups: 1, topGroups: 1 }, 'max')
        : { groups: 1, topGroups: 1 }
      return { experts, topK, scoring: 'softmax', groups, topGroups, groupScore: 'max', normalize: false, scale }
    },
  })
  return { layers: layersOf(base, i => ({ attention, ffn: ffn[i]! })), nextnLayers: 0 }
}
