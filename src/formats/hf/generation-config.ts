// generation_config.json: when to stop and how the makers of the model sample. A missing file means no opinion.
// Only these fields count here; the rest describe searches that a server does not offer, so they are read over.
import { join } from 'node:path'
import { describeJson, readJsonObject } from '../json-file.js'
import { ConfigReader } from './config-reader.js'
import { ModelConfigError } from './model-config-errors.js'

/** What the file says; null where it says nothing. */
export interface GenerationDefaults {
  readonly eosTokenIds: readonly number[]
  readonly bosTokenId: number | null
  readonly doSample: boolean | null
  readonly temperature: number | null
  readonly topP: number | null
  /** 0 = off. */
  readonly topK: number | null
  readonly minP: number | null
}

export const NO_GENERATION_DEFAULTS: GenerationDefaults = {
  eosTokenIds: [],
  bosTokenId: null,
  doSample: null,
  temperature: null,
  topP: null,
  topK: null,
  minP: null,
}

/** --json-model-override-args does not reach this file, so refusals have a remedy of their own. */
class GenerationReader extends ConfigReader {
  override refuse(field: string, expected: string, found: unknown): never {
    throw new ModelConfigError('SY_MODEL_GENERATION_FIELD', {
      file: this.file,
      field,
      expected,
      found: describeJson(found),
    })
  }
}

/** @throws ModelConfigError when the file is there and broken */
export function readGenerationConfig(dir: string): GenerationDefaults {
  const file = join(dir, 'generation_config.json')
  const json = readJsonObject(file, 16 * 1024 * 1024)
  if (!json.ok) {
    if (json.missing) return NO_GENERATION_DEFAULTS
    throw new ModelConfigError('SY_MODEL_GENERATION_UNREADABLE', { file, found: json.found })
  }
  const reader = new GenerationReader(file, json.value)
  return {
    eosTokenIds: reader.tokenIds('eos_token_id'),
    bosTokenId: reader.tokenIds('bos_token_id')[0] ?? null,
    doSample: reader.has('do_sample') ? reader.bool('do_sample', false) : null,
    temperature: reader.nullableNumber('temperature', { min: 0, max: 1000 }, null),
    topP: reader.nullableNumber('top_p', { min: 0, max: 1 }, null),
    topK: reader.nullableInt('top_k', { min: 0, max: 2 ** 31 }, null),
    minP: reader.nullableNumber('min_p', { min: 0, max: 1 }, null),
  }
}
