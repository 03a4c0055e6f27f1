// GLM-4.5: grouped-query attention with partial rotation, DeepSeek-V3's routing and shared experts.
import { type Architecture, commonLayerNames, commonMlpNames, commonNames, skipCommon } from './architecture.js'

export const glm4Moe: Architecture = {
  ...commonNames,
  skip: skipCommon,
  layer: layer => {
    const names = commonLayerNames(layer)
    const shared = commonMlpNames(`model.layers.${layer}.mlp.shared_experts`)
    return { ...names, moe: { ...names.moe, shared } }
  },
}
