// Mixtral: grouped-query attention, every layer sparse, experts named w1 (gate), w3 (up), w2 (down).
import { separateExperts } from '../layers/index.js'
import { type Architecture, commonLayerNames, commonNames, skipCommon } from './architecture.js'

export const mixtral: Architecture = {
  ...commonNames,
  skip: skipCommon,
  layer: layer => {
    const names = commonLayerNames(layer)
    const p = `model.layers.${layer}.block_sparse_moe`
    const expert = separateExperts(e => ({
      gate: `${p}.experts.${e}.w1`,
      up: `${p}.experts.${e}.w3`,
      down: `${p}.experts.${e}.w2`,
    }))
    return { ...names, moe: { ...names.moe, router: `${p}.gate`, expert } }
  },
}
