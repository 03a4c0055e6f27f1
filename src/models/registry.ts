// Architectures the engine runs.
import type { ArchitectureName, ModelSpec } from '../formats/model-spec.js'
import type { Architecture } from './architecture.js'
import { deepseek } from './deepseek.js'
import { glm4Moe } from './glm4_moe.js'
import { gptOss } from './gpt_oss.js'
import { mixtral } from './mixtral.js'
import { olmoe } from './olmoe.js'
import { qwenMoe } from './qwen_moe.js'

const ARCHITECTURES: Readonly<Record<ArchitectureName, Architecture>> = {
  deepseek_v2: deepseek,
  deepseek_v3: deepseek,
  qwen2_moe: qwenMoe,
  qwen3_moe: qwenMoe,
  mixtral,
  olmoe,
  glm4_moe: glm4Moe,
  gpt_oss: gptOss,
}

export const supportedArchitectures = (): string[] => Object.keys(ARCHITECTURES)

export const architectureOf = (spec: ModelSpec): Architecture => ARCHITECTURES[spec.architecture]
