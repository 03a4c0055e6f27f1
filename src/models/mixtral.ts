// Mixtral: grouped-query attention, every layer sparse, experts named w1 (gate), w3 (up), w2 (down).
import { separateExperts } from '../layers/index.js'
import { type Architecture, commonGqaNames, commonMlpNames, commonNames, skipCommon } from './architecture.js'

export const mixtral: Architecture = {
  ...commonNames,
  skip: skipCommon,
  layer: layer => {
    const p = `model.layers.${layer}`
    const moe = `${p}.block_sparse_moe`
    return {
      inputNorm: `${p}.input_layernorm.weight`,
      postAttentionNorm: `${p}.post_attention_layernorm.weight`,
      attention: commonGqaNames(layer),
      dense: commonMlpNames(`${p}.mlp`),
      moe: {
        router: `${moe}.gate`,
        correctionBias: `${moe}.gate.e_score_correction_bias`,
        expert: separateExperts(e => ({
          gate: `${moe}.experts.${e}.w1`,
          up: `${moe}.experts.${e}.w3`,
          down: `${moe}.experts.${e}.w2`,
        })),
        shared: commonMlpNames(`${moe}.shared_expert`),
        sharedGate: `${moe}.shared_expert_gate`,
      },
    }
  },
}
