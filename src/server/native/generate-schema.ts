// The body of POST /generate, with SGLang's fields (its io_struct.GenerateReqInput and SamplingParams). As with OpenAI's
// bodies: null means absent, what we cannot do is refused by name, fields nobody knows are ignored and named.
import { z } from 'zod'
import { MAX_TOP_LOGPROBS } from '../../engine/request.js'
import { HttpError } from '../errors.js'
import { fieldPath, logitBias } from '../openai/schema.js'

const tokenId = z.int().min(0)
const ids = z.array(tokenId)
const perPrompt = <T extends z.ZodType>(one: T) => z.union([one, z.array(one)])

export const samplingParams = z.looseObject({
  max_new_tokens: z.int().min(0).optional(),
  min_new_tokens: z.int().min(0).optional(),
  temperature: z.number().min(0).max(100).optional(),
  top_p: z.number().gt(0).max(1).optional(),
  top_k: z.int().min(-1).optional(),
  min_p: z.number().min(0).max(1).optional(),
  stop: z.union([z.string().min(1), z.array(z.string().min(1)).max(16)]).optional(),
  stop_token_ids: z.array(tokenId).max(64).optional(),
  ignore_eos: z.boolean().optional(),
  presence_penalty: z.number().min(-2).max(2).optional(),
  frequency_penalty: z.number().min(-2).max(2).optional(),
  repetition_penalty: z.number().gt(0).max(2).optional(),
  logit_bias: logitBias.optional(),
  n: z.int().min(1).max(128).optional(),
  sampling_seed: z.int().optional(),
})

const generate = z.looseObject({
  text: perPrompt(z.string()).optional(),
  input_ids: z.union([ids, z.array(ids)]).optional(),
  sampling_params: perPrompt(samplingParams).optional(),
  stream: z.boolean().optional(),
  rid: perPrompt(z.string().min(1).max(200)).optional(),
  return_logprob: perPrompt(z.boolean()).optional(),
  logprob_start_len: perPrompt(z.int().min(-1)).optional(),
  top_logprobs_num: perPrompt(z.int().min(0).max(MAX_TOP_LOGPROBS)).optional(),
  return_text_in_logprobs: z.boolean().optional(),
  routed_dp_rank: z.int().min(0).optional(),
  /** The former name of routed_dp_rank. */
  data_parallel_rank: z.int().min(0).optional(),
  priority: z.int().optional(),
})

export type SamplingBody = z.infer<typeof samplingParams>
export type GenerateBody = z.infer<typeof generate>

const NOTHING = (value: unknown): boolean =>
  value === false || value === '' || (typeof value === 'object' && value !== null && Object.keys(value).length === 0)

const REFUSED: Readonly<Record<string, string>> = {
  image_data: 'prompts are text or token ids',
  video_data: 'prompts are text or token ids',
  audio_data: 'prompts are text or token ids',
  input_embeds: 'prompts are text or token ids',
  lora_path: 'adapters are not read',
  session_params: 'there are no sessions',
  custom_logit_processor: 'no code is run for a request',
  return_hidden_states: 'hidden states stay inside',
  return_routed_experts: 'this version does not report routing by request',
  token_ids_logprob: 'log-probabilities come for drawn tokens and the likeliest ones',
  bootstrap_host: 'prefill and decode are not disaggregated',
  bootstrap_room: 'prefill and decode are not disaggregated',
  disagg_prefill_dp_rank: 'prefill and decode are not disaggregated',
}

const REFUSED_SAMPLING: Readonly<Record<string, string>> = {
  regex: 'output is not constrained',
  ebnf: 'output is not constrained',
  json_schema: 'output is not constrained',
  structural_tag: 'output is not constrained',
  stop_regex: 'stop texts are compared as they are',
  no_stop_trim: 'the stop text is never part of the output',
  custom_params: 'there are no custom logit processors',
}

/** Change nothing here. */
const INERT = new Set([
  'log_metrics',
  'modalities',
  'background',
  'conversation_id',
  'extra_key',
  'no_logs',
  'bootstrap_port',
])

function refuse(
  body: Readonly<Record<string, unknown>>,
  table: Readonly<Record<string, string>>,
  prefix: string,
): void {
  for (const [field, reason] of Object.entries(table)) {
    const value = body[field]
    if (value === undefined || value === null || NOTHING(value)) continue
    throw new HttpError('SY_HTTP_UNSUPPORTED_FIELD', { param: prefix + field, reason })
  }
  if (body['skip_special_tokens'] === false) {
    const reason = 'special tokens are never part of the text'
    throw new HttpError('SY_HTTP_UNSUPPORTED_FIELD', { param: `${prefix}skip_special_tokens`, reason })
  }
}

/** Without nulls, at the top and in sampling_params. */
const present = (value: unknown): unknown => {
  if (Array.isArray(value)) return value.map(present)
  if (typeof value !== 'object' || value === null) return value
  return Object.fromEntries(Object.entries(value).filter(([, inner]) => inner !== null))
}

/** @throws HttpError 400 naming the field */
export function parseGenerate(raw: Record<string, unknown>): { body: GenerateBody; ignored: readonly string[] } {
  const body = present(raw) as Record<string, unknown>
  refuse(body, REFUSED, '')
  if (body['sampling_params'] !== undefined) body['sampling_params'] = present(body['sampling_params'])
  for (const params of [body['sampling_params']].flat()) {
    if (typeof params === 'object' && params !== null)
      refuse(params as Record<string, unknown>, REFUSED_SAMPLING, 'sampling_params.')
  }
  const result = generate.safeParse(body)
  if (!result.success) {
    const issue = result.error.issues[0]!
    throw new HttpError('SY_HTTP_INVALID_FIELD', {
      param: fieldPath(issue.path) || 'body',
      problem: issue.message.slice(0, 300),
    })
  }
  const known = (key: string) => Object.hasOwn(generate.shape, key) || Object.hasOwn(REFUSED, key) || INERT.has(key)
  return { body: result.data, ignored: Object.keys(body).filter(key => !known(key)) }
}
