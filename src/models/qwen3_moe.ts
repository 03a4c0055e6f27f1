// Qwen3-MoE: grouped-query attention with a norm per head, softmax routing, no shared expert.
import { separateExperts } from '../layers/index.js'
import { type Architecture, commonGqaNames, commonMlpNames, commonNames, skipCommon } from './architecture.js'

export const qwen3Moe: Architecture = {
  ...commonNames,
  skip: skipCommon,
  layer: layer => {
    const p = `model.layers.${layer}`
    return {
      inputNorm: `${p}.input_layernorm.weight`,
      postAttentionNorm: `${p}.post_attention_layernorm.weight`,
      attention: commonGqaNames(layer),
      dense: commonMlpNames(`${p}.mlp`),
      moe: {
        router: `${p}.mlp.gate`,
        correctionBias: `${p}.mlp.gate.e_score_correction_bias`,
        expert: separateExperts(e => commonMlpNames(`${p}.mlp.experts.${e}`)),
        shared: commonMlpNames(`${p}.mlp.shared_expert`),
        sharedGate: `${p}.mlp.shared_expert_gate`,
      },
    }
  },
}
