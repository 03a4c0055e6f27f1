// From a /generate body to engine requests. One prompt or a batch; fields may be one value for all or a list, one a prompt.
import { randomUUID } from 'node:crypto'
import type { GenerationEngine, GenerationRequest } from '../../engine/request.js'
import { encodeText } from '../encode.js'
import { HttpError } from '../errors.js'
import { fanOut, type Job } from '../openai/fan-out.js'
import { logitFields, outputLimit } from '../openai/sampling.js'
import type { GenerateBody, SamplingBody } from './generate-schema.js'

/** SGLang's default of max_new_tokens. */
const DEFAULT_NEW_TOKENS = 128
const MAX_TOP_K = 2 ** 24 - 1
const MAX_PROMPTS = 1024

export interface GenerateJob extends Job {
  /** The body held a list: so does the answer. */
  readonly batch: boolean
  /** By engine request. */
  readonly ids: readonly string[]
  /** First prompt token whose log-probability is wanted; null: of output only, or none at all. */
  readonly logprobStart: readonly (number | null)[]
}

const bad = (param: string, problem: string): HttpError => new HttpError('SY_HTTP_INVALID_FIELD', { param, problem })

type Prompt = string | readonly number[]

function promptsOf({ text, input_ids: ids }: GenerateBody): {
  prompts: readonly Prompt[]
  batch: boolean
  param: string
} {
  if (text !== undefined && ids !== undefined)
    throw bad('input_ids', 'text and input_ids are given; one of them is the prompt')
  if (text !== undefined) {
    return Array.isArray(text)
      ? { prompts: text, batch: true, param: 'text' }
      : { prompts: [text], batch: false, param: 'text' }
  }
  if (ids === undefined) throw bad('text', 'neither text nor input_ids is given')
  return ids.length > 0 && Array.isArray(ids[0])
    ? { prompts: ids as number[][], batch: true, param: 'input_ids' }
    : { prompts: [ids as number[]], batch: false, param: 'input_ids' }
}

/** The value for prompt `i` of a field that is one value or a list. */
function pick<T>(value: T | readonly T[] | undefined, i: number, count: number, param: string): T | undefined {
  if (!Array.isArray(value)) return value as T | undefined
  if (value.length !== count) throw bad(param, `${value.length} values for ${count} prompts`)
  return value[i] as T
}

/** @throws HttpError 400 naming the field */
export async function generateJob(engine: GenerationEngine, body: GenerateBody): Promise<GenerateJob> {
  const { prompts, batch, param } = promptsOf(body)
  const count = prompts.length
  if (count === 0) throw bad(param, 'the list is empty')
  if (count > MAX_PROMPTS) throw bad(param, `${count} prompts, but at most ${MAX_PROMPTS} a request`)
  const requests: GenerationRequest[] = []
  const starts: (number | null)[] = []
  let choices = 1
  for (const [i, prompt] of prompts.entries()) {
    const at = batch ? `${param}[${i}]` : param
    const inputIds =
      typeof prompt === 'string' ? await encodeText(engine, prompt, { addSpecialTokens: true }, 'text') : prompt
    if (inputIds.length === 0) throw bad(at, 'it is empty')
    const outside = inputIds.findIndex(id => id >= engine.vocabSize)
    if (outside >= 0) throw bad(`${at}[${outside}]`, `expected a token id from 0 to ${engine.vocabSize - 1}`)
    const sampling: SamplingBody = pick<SamplingBody>(body.sampling_params, i, count, 'sampling_params') ?? {}
    const n = sampling.n ?? 1
    if (i > 0 && n !== choices) throw bad(`sampling_params[${i}].n`, 'it must be the same for all prompts of a batch')
    choices = n
    const withLogprobs = pick(body.return_logprob, i, count, 'return_logprob') ?? false
    const top = pick(body.top_logprobs_num, i, count, 'top_logprobs_num') ?? 0
    const start = pick(body.logprob_start_len, i, count, 'logprob_start_len') ?? -1
    const ofPrompt = withLogprobs && start >= 0 && start < inputIds.length
    const rid = pick(body.rid, i, count, 'rid')
    const routed = body.routed_dp_rank ?? body.data_parallel_rank
    starts.push(...Array<number | null>(n).fill(ofPrompt ? start : null))
    requests.push({
      id: rid ?? randomUUID(),
      inputIds,
      sampling: samplingOf(engine, sampling, inputIds.length, param, ofPrompt),
      ...(withLogprobs ? { topLogprobs: top } : {}),
      ...(ofPrompt ? { promptTopLogprobs: top } : {}),
      ...(routed === undefined ? {} : { routedDpRank: routed }),
      ...(body.priority === undefined ? {} : { priority: body.priority }),
    })
  }
  const job = fanOut(requests, choices)
  return { ...job, batch: batch || choices > 1, ids: job.requests.map(r => r.id!), logprobStart: starts }
}

function samplingOf(
  engine: GenerationEngine,
  body: SamplingBody,
  promptTokens: number,
  promptParam: string,
  promptOnly: boolean,
): GenerationRequest['sampling'] {
  const outputParam = 'sampling_params.max_new_tokens'
  if (body.max_new_tokens === 0 && !promptOnly) {
    throw bad(outputParam, 'expected at least 1; 0 needs return_logprob and logprob_start_len')
  }
  const maxTokens = outputLimit(engine.contextLength, promptTokens, {
    asked: body.max_new_tokens,
    otherwise: DEFAULT_NEW_TOKENS,
    outputParam,
    promptParam,
  })
  const minTokens = body.min_new_tokens ?? 0
  if (minTokens > maxTokens)
    throw bad('sampling_params.min_new_tokens', `expected at most max_new_tokens (${maxTokens})`)
  return {
    temperature: body.temperature ?? 1,
    topP: body.top_p ?? 1,
    topK: Math.min(MAX_TOP_K, Math.max(0, body.top_k ?? 0)),
    minP: body.min_p ?? 0,
    seed: body.sampling_seed === undefined ? null : BigInt.asUintN(64, BigInt(body.sampling_seed)),
    maxTokens,
    stop: body.stop === undefined ? [] : [body.stop].flat(),
    ignoreEos: body.ignore_eos ?? false,
    ...logitFields({ ...body, min_tokens: minTokens }, engine.vocabSize, 'sampling_params.'),
  }
}
