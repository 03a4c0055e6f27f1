// Qwen2-MoE and Qwen3-MoE: grouped-query attention (Qwen2 with biases, Qwen3 with a norm per head), softmax routing;
// Qwen2 has a shared expert behind a gate.
import { type Architecture, commonLayerNames, commonNames, skipCommon } from './architecture.js'

export const qwenMoe: Architecture = { ...commonNames, skip: skipCommon, layer: commonLayerNames }
