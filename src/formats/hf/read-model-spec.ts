// config.json (with overrides) and generation_config.json to a ModelSpec. Every field is honoured, known to be inert, or
// refused by name; nothing is ignored. The rules of each architecture are in architectures/.
import { join } from 'node:path'
import { describeJson, isJsonObject, type JsonObject, readJsonObject } from '../json-file.js'
import type { ArchitectureName, ModelSpec } from '../model-spec.js'
import { readDeepseekV2 } from './architectures/deepseek_v2.js'
import { readDeepseekV3 } from './architectures/deepseek_v3.js'
import { readGlm4Moe } from './architectures/glm4_moe.js'
import { readGptOss } from './architectures/gpt_oss.js'
import { readMixtral } from './architectures/mixtral.js'
import { readOlmoe } from './architectures/olmoe.js'
import { readQwen2Moe, readQwen3Moe } from './architectures/qwen_moe.js'
import { type ArchitectureReader, type Base, COUNT, SIDE } from './common.js'
import { ConfigReader } from './config-reader.js'
import { type GenerationDefaults, readGenerationConfig } from './generation-config.js'
import { INERT_FIELDS } from './inert-fields.js'
import { ModelConfigError } from './model-config-errors.js'
import { readQuantization } from './quantization.js'

interface Architecture {
  readonly className: string
  readonly read: ArchitectureReader
}

const ARCHITECTURES: Readonly<Record<ArchitectureName, Architecture>> = {
  deepseek_v2: { className: 'DeepseekV2ForCausalLM', read: readDeepseekV2 },
  deepseek_v3: { className: 'DeepseekV3ForCausalLM', read: readDeepseekV3 },
  qwen2_moe: { className: 'Qwen2MoeForCausalLM', read: readQwen2Moe },
  qwen3_moe: { className: 'Qwen3MoeForCausalLM', read: readQwen3Moe },
  mixtral: { className: 'MixtralForCausalLM', read: readMixtral },
  olmoe: { className: 'OlmoeForCausalLM', read: readOlmoe },
  glm4_moe: { className: 'Glm4MoeForCausalLM', read: readGlm4Moe },
  gpt_oss: { className: 'GptOssForCausalLM', read: readGptOss },
}

export const SUPPORTED_ARCHITECTURES = Object.keys(ARCHITECTURES) as ArchitectureName[]

export interface ModelConfig {
  readonly spec: ModelSpec
  /** config.json as it is, overrides applied. */
  readonly raw: Readonly<Record<string, unknown>>
  readonly generation: GenerationDefaults
}

/**
 * Reads the model description in `dir`. `overrides` replaces top-level fields (--json-model-override-args).
 * @throws ModelConfigError naming the file, the field, what was expected and what was found
 */
export function readModelSpec(dir: string, overrides?: Readonly<Record<string, unknown>>): ModelConfig {
  const file = join(dir, 'config.json')
  const json = readJsonObject(file, 64 * 1024 * 1024)
  if (!json.ok)
    throw json.missing
      ? new ModelConfigError('SY_MODEL_CONFIG_MISSING', { file })
      : new ModelConfigError('SY_MODEL_CONFIG_UNREADABLE', { file, found: json.found })
  if (overrides !== undefined && !isJsonObject(overrides))
    throw new ModelConfigError('SY_MODEL_OVERRIDE', { found: describeJson(overrides) })
  const generation = readGenerationConfig(dir)
  const raw = { ...json.value, ...overrides }
  return { spec: modelSpecOf(file, raw, generation), raw, generation }
}

/** The same from an object in memory; `file` is the name used in errors. */
export function modelSpecOf(file: string, raw: JsonObject, generation: GenerationDefaults): ModelSpec {
  const architecture = architectureOf(file, raw)
  const reader = new ConfigReader(file, raw)
  reader.inert(...INERT_FIELDS)
  const base: Base = {
    hiddenSize: reader.int('hidden_size', SIDE),
    layerCount: reader.int('num_hidden_layers', { min: 1, max: 10_000 }),
    heads: reader.int('num_attention_heads', COUNT),
    maxPositions: reader.int('max_position_embeddings', { min: 1, max: 2 ** 31 }),
  }
  const vocabSize = reader.int('vocab_size', { min: 1, max: 1 << 24 })
  const normEps = reader.number('rms_norm_eps', { min: 0, max: 1 })
  const tieWordEmbeddings = reader.bool('tie_word_embeddings', false)
  const dtype = readDtype(reader)
  const fp8Block = readQuantization(reader)
  const eosTokenIds = [...new Set([...reader.tokenIds('eos_token_id'), ...generation.eosTokenIds])]
  const bosTokenId = reader.tokenIds('bos_token_id')[0] ?? generation.bosTokenId
  const body = ARCHITECTURES[architecture].read(reader, base)
  reader.finish(architecture)
  return {
    architecture,
    vocabSize,
    hiddenSize: base.hiddenSize,
    normEps,
    maxPositions: base.maxPositions,
    tieWordEmbeddings,
    dtype,
    layers: body.layers,
    eosTokenIds,
    bosTokenId,
    nextnLayers: body.nextnLayers,
    fp8Block,
  }
}

/** By class name first (several model types share DeepSeek-V3's class), then by model_type; both must agree if both are known. */
function architectureOf(file: string, raw: JsonObject): ArchitectureName {
  const listed = raw['architectures']
  const className = Array.isArray(listed) && listed.length > 0 ? listed[0] : null
  const modelType = raw['model_type'] ?? null
  const byClass = SUPPORTED_ARCHITECTURES.find(name => ARCHITECTURES[name].className === className) ?? null
  const byType = SUPPORTED_ARCHITECTURES.find(name => name === modelType) ?? null
  if (byClass !== null && byType !== null && byClass !== byType)
    throw new ModelConfigError('SY_MODEL_CONFIG_FIELD', {
      file,
      field: 'model_type',
      expected: `${byClass}, as architectures says ${String(className)}`,
      found: describeJson(modelType),
      override: `--json-model-override-args '{"model_type": "${byClass}"}'`,
    })
  const name = byClass ?? (className === null ? byType : null)
  if (name !== null) return name
  throw new ModelConfigError('SY_MODEL_ARCHITECTURE', {
    file,
    found: describeJson(className ?? modelType),
    supported: SUPPORTED_ARCHITECTURES.map(a => `${a} (${ARCHITECTURES[a].className})`).join(', '),
  })
}

function readDtype(reader: ConfigReader): ModelSpec['dtype'] {
  const text = reader.string(['dtype', 'torch_dtype'], 'float32')
  const dtype = text?.replace(/^torch\./, '')
  if (dtype === 'float32' || dtype === 'bfloat16' || dtype === 'float16') return dtype
  return reader.refuse('dtype', 'float32, bfloat16 or float16', text)
}
