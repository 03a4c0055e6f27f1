// DeepSeek-V2 and V3 (R1, Kimi-K2 in the same form): MLA, first layers dense; V3 routes by sigmoid scores with a correction
// bias, V2 by softmax. The names are the same.
import type { MlaNames } from '../layers/index.js'
import { type Architecture, commonLayerNames, commonMlpNames, commonNames, skipCommon } from './architecture.js'

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

export const deepseek: Architecture = {
  ...commonNames,
  skip: skipCommon,
  layer: layer => {
    const names = commonLayerNames(layer)
    const shared = commonMlpNames(`model.layers.${layer}.mlp.shared_experts`)
    return { ...names, attention: mlaNames(layer), moe: { ...names.moe, shared } }
  },
}
