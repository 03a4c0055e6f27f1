// DeepSeek-V3 (and R1, Kimi-K2 in the same form): MLA, first layers dense, sigmoid routing with a correction bias.
import { type MlaNames, separateExperts } from '../layers/index.js'
import { type Architecture, commonMlpNames, commonNames, skipCommon } from './architecture.js'

const mlaNames = (layer: number): MlaNames => {
  const p = `model.layers.${layer}.self_attn`
  return {
    kind: 'mla',
    q: `${p}.q_proj`,
    qA: `${p}.q_a_proj`,
    qANorm: `${p}.q_a_layernorm`,
    qB: `${p}.q_b_proj`,
    kvA: `${p}.kv_a_proj_with_mqa`,
    kvANorm: `${p}.kv_a_layernorm`,
    kvB: `${p}.kv_b_proj`,
    o: `${p}.o_proj`,
  }
}

export const deepseekV3: Architecture = {
  ...commonNames,
  skip: skipCommon,
  layer: layer => {
    const p = `model.layers.${layer}`
    return {
      inputNorm: `${p}.input_layernorm.weight`,
      postAttentionNorm: `${p}.post_attention_layernorm.weight`,
      attention: mlaNames(layer),
      dense: commonMlpNames(`${p}.mlp`),
      moe: {
        router: `${p}.mlp.gate`,
        correctionBias: `${p}.mlp.gate.e_score_correction_bias`,
        expert: separateExperts(e => commonMlpNames(`${p}.mlp.experts.${e}`)),
        shared: commonMlpNames(`${p}.mlp.shared_experts`),
        sharedGate: `${p}.mlp.shared_expert_gate`,
      },
    }
  },
}
