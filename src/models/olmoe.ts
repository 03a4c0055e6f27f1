// OLMoE: attention whose queries and keys are normalised over the whole row, softmax routing, no shared expert.
import { type Architecture, commonLayerNames, commonNames, skipCommon } from './architecture.js'

export const olmoe: Architecture = { ...commonNames, skip: skipCommon, layer: commonLayerNames }
