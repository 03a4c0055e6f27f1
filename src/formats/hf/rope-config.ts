// The rotary fields of a config, in their old spelling (rope_theta and rope_scaling {type}) and their new one
// (rope_parameters {rope_type, rope_theta}), to a RopeSpec. Kinds read: default, linear, yarn, llama3; others are refused.
// Follows Hugging Face transformers 5: what stands inside the object wins over what stands beside it, if both agree.
import { isJsonObject, type JsonObject } from '../json-file.js'
import type { RopeSpec } from '../model-spec.js'
import { ConfigReader } from './config-reader.js'
import { linearFrequencies, llama3Frequencies, plainFrequencies, yarnFrequencies, yarnMscale } from './rope.js'

export interface RopeContext {
  /** Elements that rotate when nothing says "partially". */
  readonly headDim: number
  readonly interleaved: boolean
  readonly defaultTheta: number
  readonly maxPositions: number
  /** Default of partial_rotary_factor, or null where the architecture rotates whole heads only. */
  readonly partial: number | null
  /** What stands for rope_parameters when the config has none (gpt-oss stretches by default). */
  readonly defaults?: JsonObject
}

export interface RopeReading {
  readonly spec: RopeSpec
  /** Factor on the softmax scale: DeepSeek multiplies by mscale(factor, mscale_all_dim) squared. */
  readonly softmaxFactor: number
}

const POSITIVE = { min: 1e-6, max: 1e12 }
const POSITIONS = { min: 1, max: 2 ** 31 }
const LAYER_KINDS = ['full_attention', 'sliding_attention', 'chunked_attention', 'linear_attention']

/** @throws ModelConfigError naming the field */
export function readRope(reader: ConfigReader, context: RopeContext): RopeReading {
  const { field, object } = ropeObject(reader, context)
  const inner = new ConfigReader(reader.file, object, `${field}.`)
  const theta = either(reader, inner, 'rope_theta', { min: 1e-3, max: 1e15 }, context.defaultTheta)
  const partial = either(reader, inner, 'partial_rotary_factor', { min: 0, max: 1 }, context.partial ?? 1)
  if (context.partial === null && partial !== 1)
    reader.unsupported('partial_rotary_factor', partial, 'this architecture rotates whole heads')
  const width = Math.trunc(context.headDim * partial)
  if (width < 2 || width % 2 !== 0)
    reader.refuse(
      partial === 1 ? 'head_dim' : 'partial_rotary_factor',
      'an even number of rotating elements, at least 2',
      width,
    )

  const kind = inner.string(['rope_type', 'type'], 'default')
  let attentionFactor = 1
  let softmaxFactor = 1
  let inverseFrequencies: number[]
  switch (kind) {
    case 'default':
      inverseFrequencies = plainFrequencies(theta, width)
      break
    case 'linear':
      inverseFrequencies = linearFrequencies(theta, width, inner.number('factor', POSITIVE))
      break
    case 'llama3': {
      const lowFreqFactor = inner.number('low_freq_factor', POSITIVE)
      const highFreqFactor = inner.number('high_freq_factor', POSITIVE)
      if (highFreqFactor <= lowFreqFactor)
        inner.refuse('high_freq_factor', `more than low_freq_factor (${lowFreqFactor})`, highFreqFactor)
      inverseFrequencies = llama3Frequencies(theta, width, {
        factor: inner.number('factor', POSITIVE),
        lowFreqFactor,
        highFreqFactor,
        originalPositions: originalPositions(reader, inner, context),
      })
      break
    }
    case 'yarn': {
      if (theta <= 1) inner.refuse('rope_theta', 'more than 1 for yarn', theta)
      const original = originalPositions(reader, inner, context)
      const factor = inner.number('factor', POSITIVE, context.maxPositions / original)
      const mscale = inner.number('mscale', { min: 0, max: 1e6 }, 0)
      const mscaleAllDim = inner.number('mscale_all_dim', { min: 0, max: 1e6 }, 0)
      const inferred =
        mscale && mscaleAllDim ? yarnMscale(factor, mscale) / yarnMscale(factor, mscaleAllDim) : yarnMscale(factor, 1)
      attentionFactor = inner.number('attention_factor', { min: 0, max: 1e6 }, inferred)
      if (mscaleAllDim) softmaxFactor = yarnMscale(factor, mscaleAllDim) ** 2
      inverseFrequencies = yarnFrequencies(theta, width, {
        factor,
        originalPositions: original,
        betaFast: inner.number('beta_fast', { min: 0, max: 1e9 }, 32) || 32,
        betaSlow: inner.number('beta_slow', { min: 0, max: 1e9 }, 1) || 1,
        truncate: inner.bool('truncate', true),
      })
      break
    }
    case 'dynamic':
    case 'longrope':
    case 'su':
      return inner.unsupported('rope_type', kind, 'its frequencies change with the length of each sequence')
    default:
      return inner.unsupported('rope_type', kind, 'read are default, linear, yarn and llama3')
  }
  inner.finish('rotary embedding')
  return {
    spec: { width, interleaved: context.interleaved, inverseFrequencies, attentionFactor },
    softmaxFactor,
  }
}

function ropeObject(reader: ConfigReader, context: RopeContext): { field: string; object: JsonObject } {
  const old = reader.object('rope_scaling')
  const current = reader.object('rope_parameters')
  const isEmpty = (o: JsonObject | null): boolean => o === null || Object.keys(o).length === 0
  if (!isEmpty(old) && !isEmpty(current) && canonical(old) !== canonical(current))
    reader.refuse('rope_scaling', 'the same as rope_parameters', old)
  const field = isEmpty(old) ? 'rope_parameters' : 'rope_scaling'
  const object = isEmpty(old) ? current : old
  if (object === null || isEmpty(object)) return { field, object: context.defaults ?? {} }

  const kinds = Object.keys(object).filter(key => LAYER_KINDS.includes(key))
  if (kinds.length === 0) return { field, object }
  const perKind = kinds.map(kind => object[kind])
  const [first] = perKind
  if (
    kinds.length < Object.keys(object).length ||
    !isJsonObject(first) ||
    perKind.some(o => canonical(o) !== canonical(first))
  )
    reader.unsupported(field, object, `rotary parameters that differ by kind of layer (${kinds.join(', ')})`)
  return { field, object: first }
}

const canonical = (value: unknown): string =>
  isJsonObject(value)
    ? JSON.stringify(Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1)))
    : JSON.stringify(value)

/** A number that may stand inside the rope object, beside it, or both if they agree. */
function either(
  outer: ConfigReader,
  inner: ConfigReader,
  name: string,
  range: { min: number; max: number },
  fallback: number,
): number {
  const beside = outer.nullableNumber(name, range, null)
  const inside = inner.nullableNumber(name, range, null)
  if (beside !== null && inside !== null && beside !== inside)
    outer.refuse(name, `the value that stands inside the rotary parameters (${inside})`, beside)
  return inside ?? beside ?? fallback
}

/** Hugging Face lets a field beside the rope object win here (Phi-3 keeps it there). */
function originalPositions(outer: ConfigReader, inner: ConfigReader, context: RopeContext): number {
  const inside = inner.int('original_max_position_embeddings', POSITIONS, context.maxPositions)
  return outer.int('original_max_position_embeddings', POSITIONS, inside)
}
