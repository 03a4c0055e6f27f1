// From a request body to the engine's sampling parameters. What the body leaves open comes from the model's
// generation_config (as SGLang does), else OpenAI's default of 1.
import type { GenerationEngine, SamplingParams } from '../../engine/request.js'
import { HttpError } from '../errors.js'
import type { SharedBody } from './schema.js'

export interface SamplingDefaults {
  readonly temperature: number
  readonly topP: number
  readonly topK: number
  readonly minP: number
}

/** Reads `generation_defaults` {temperature, topP, topK, minP}, each a number or null, of the engine's info. */
export function samplingDefaults(engine: GenerationEngine): SamplingDefaults {
  const given = (engine.info()['generation_defaults'] ?? {}) as Readonly<Record<string, unknown>>
  const number = (key: string, otherwise: number): number => {
    const value = given[key]
    return typeof value === 'number' && Number.isFinite(value) ? value : otherwise
  }
  return {
    temperature: number('temperature', 1),
    topP: number('topP', 1),
    topK: Math.max(0, number('topK', 0)),
    minP: number('minP', 0),
  }
}

/** More candidates than any vocabulary has; beyond it the engine would refuse a number that means "all". */
const MAX_TOP_K = 2 ** 24 - 1

/** What both the OpenAI and the native API call by the same names. */
export interface LogitFields {
  readonly min_tokens?: number | undefined
  readonly presence_penalty?: number | undefined
  readonly frequency_penalty?: number | undefined
  readonly repetition_penalty?: number | undefined
  readonly logit_bias?: Readonly<Record<string, number>> | undefined
  readonly stop_token_ids?: readonly number[] | undefined
}

/**
 * Only what was given: the engine leaves logits alone otherwise.
 * @throws HttpError 400 for a bias on a token that the model does not have, or an end at one
 */
export function logitFields(
  body: LogitFields,
  vocabSize: number,
  prefix = '',
): Partial<SamplingParams> & Pick<SamplingParams, 'stopTokenIds'> {
  const stopTokenIds = body.stop_token_ids ?? []
  const refuseOutside = (field: string, ids: readonly number[]) => {
    const outside = ids.find(id => id >= vocabSize)
    if (outside === undefined) return
    const problem = `token ${outside} is outside the vocabulary of ${vocabSize}`
    throw new HttpError('SY_HTTP_INVALID_FIELD', { param: `${prefix}${field}`, problem })
  }
  refuseOutside('logit_bias', Object.keys(body.logit_bias ?? {}).map(Number))
  refuseOutside('stop_token_ids', stopTokenIds)
  return {
    stopTokenIds,
    ...(body.min_tokens ? { minTokens: body.min_tokens } : {}),
    ...(body.presence_penalty ? { presencePenalty: body.presence_penalty } : {}),
    ...(body.frequency_penalty ? { frequencyPenalty: body.frequency_penalty } : {}),
    ...(body.repetition_penalty !== undefined && body.repetition_penalty !== 1
      ? { repetitionPenalty: body.repetition_penalty }
      : {}),
    ...(body.logit_bias && Object.keys(body.logit_bias).length > 0 ? { logitBias: body.logit_bias } : {}),
  }
}

/** @param maxTokens already checked against the context */
export function samplingOf(
  body: SharedBody,
  defaults: SamplingDefaults,
  maxTokens: number,
  vocabSize: number,
): SamplingParams {
  return {
    temperature: body.temperature ?? defaults.temperature,
    topP: body.top_p ?? defaults.topP,
    topK: Math.min(MAX_TOP_K, Math.max(0, body.top_k ?? defaults.topK)),
    minP: body.min_p ?? defaults.minP,
    seed: body.seed === undefined ? null : BigInt.asUintN(64, BigInt(body.seed)),
    maxTokens,
    stop: body.stop === undefined ? [] : typeof body.stop === 'string' ? [body.stop] : body.stop,
    ignoreEos: body.ignore_eos ?? false,
    ...logitFields(body, vocabSize),
  }
}

/** What a request asks for, and the fields to name when it is too much. */
export interface OutputWish {
  readonly asked: number | undefined
  readonly otherwise: number
  readonly outputParam: string
  readonly promptParam: string
}

/**
 * Tokens a request may make: what it asks for, else `otherwise`, cut to what the context has left.
 * @throws HttpError 400 with the numbers when prompt and output do not fit
 */
export function outputLimit(context: number, promptTokens: number, wish: OutputWish): number {
  const left = context - promptTokens
  const output = wish.asked ?? 1
  if (output <= left) return wish.asked ?? Math.min(wish.otherwise, left)
  throw new HttpError('SY_HTTP_CONTEXT_LENGTH', {
    context,
    needed: promptTokens + output,
    prompt: promptTokens,
    output,
    param: wish.asked === undefined ? wish.promptParam : wish.outputParam,
  })
}
