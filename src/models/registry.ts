// Architectures the engine runs.
import type { ArchitectureName, ModelSpec } from '../formats/model-spec.js'
import type { Architecture } from './architecture.js'
import { deepseekV3 } from './deepseek_v3.js'
import { ModelError } from './errors.js'
import { mixtral } from './mixtral.js'
import { qwen3Moe } from './qwen3_moe.js'

const ARCHITECTURES: Partial<Record<ArchitectureName, Architecture>> = {
  deepseek_v3: deepseekV3,
  qwen3_moe: qwen3Moe,
  mixtral,
}

export const supportedArchitectures = (): string[] => Object.keys(ARCHITECTURES)

/** @throws ModelError when the engine cannot run the architecture, or one of its features, yet. */
export function architectureOf(spec: ModelSpec): Architecture {
  const refuse = (what: string) =>
    new ModelError('SY_MODEL_UNSUPPORTED', {
      architecture: spec.architecture,
      what,
      supported: supportedArchitectures().join(', '),
    })
  const architecture = ARCHITECTURES[spec.architecture]
  if (!architecture) throw refuse('the architecture has no wiring')
  for (const { attention } of spec.layers) {
    if (attention.kind === 'gqa' && attention.clipQkv !== null) throw refuse('clip_qkv is not implemented')
  }
  return architecture
}
