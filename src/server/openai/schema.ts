// The request bodies of /v1/completions and /v1/chat/completions. Lenient as clients need it: null means absent, unknown
// fields are ignored (and named in a response header). Strict where it matters: types and ranges, with the field's path.
import { z } from 'zod'
import { MAX_TOP_LOGPROBS } from '../../engine/request.js'
import { HttpError } from '../errors.js'
import { INERT_FIELDS, REFUSED_FIELDS, refuseUnsupported } from './refusals.js'

const tokenId = z.int().min(0)

/** Choices of one prompt. */
const MAX_CHOICES = 128

/** Token ids as text → what is added to their logits. */
export const logitBias = z
  .record(z.string().regex(/^\d{1,9}$/, 'expected token ids as keys'), z.number().min(-100).max(100))
  .refine(bias => Object.keys(bias).length <= 1024, 'expected at most 1024 tokens')

const shared = {
  model: z.string().optional(),
  stream: z.boolean().optional(),
  stream_options: z.looseObject({ include_usage: z.boolean().nullish() }).optional(),
  max_tokens: z.int().min(1).optional(),
  temperature: z.number().min(0).max(100).optional(),
  top_p: z.number().gt(0).max(1).optional(),
  top_k: z.int().min(-1).optional(),
  min_p: z.number().min(0).max(1).optional(),
  seed: z.int().optional(),
  stop: z
    .union([z.string().min(1).max(1000), z.array(z.string().min(1).max(1000)).max(16)], {
      error: 'expected a text, or a list of at most 16 texts, none of them empty',
    })
    .optional(),
  stop_token_ids: z.array(tokenId).max(64).optional(),
  ignore_eos: z.boolean().optional(),
  n: z.int().min(1).max(MAX_CHOICES).optional(),
  min_tokens: z.int().min(0).optional(),
  presence_penalty: z.number().min(-2).max(2).optional(),
  frequency_penalty: z.number().min(-2).max(2).optional(),
  repetition_penalty: z.number().gt(0).max(2).optional(),
  logit_bias: logitBias.optional(),
  priority: z.int().optional(),
  /** vLLM's: adds `token_ids` to every choice. */
  return_token_ids: z.boolean().optional(),
  /** SGLang's: the attention-DP rank that must run the request. */
  routed_dp_rank: z.int().min(0).optional(),
}

const completion = z.looseObject({
  ...shared,
  prompt: z.unknown(),
  /** 0 with echo: the prompt alone, for its log-probabilities. */
  max_tokens: z.int().min(0).optional(),
  echo: z.boolean().optional(),
  /** Alternatives beside the log-probability of each token. */
  logprobs: z.union([z.literal(false), z.int().min(0).max(5)], { error: 'expected an integer from 0 to 5' }).optional(),
})

const textPart = z.looseObject({ type: z.literal('text'), text: z.string() })
const message = z.looseObject({
  role: z.string().min(1).max(64),
  name: z.string().nullish(),
  content: z.union([z.string(), z.array(textPart)], { error: 'expected a text, or a list of {"type": "text"} parts' }),
})
const chat = z.looseObject({
  ...shared,
  messages: z.array(message).min(1),
  max_completion_tokens: z.int().min(1).optional(),
  chat_template_kwargs: z.record(z.string(), z.unknown()).optional(),
  add_generation_prompt: z.boolean().optional(),
  logprobs: z.boolean().optional(),
  top_logprobs: z.int().min(0).max(MAX_TOP_LOGPROBS).optional(),
})

const SCHEMAS = { completion, chat } as const

export type CompletionBody = z.infer<typeof completion>
export type ChatBody = z.infer<typeof chat>
export type SharedBody = Pick<CompletionBody, keyof typeof shared>
interface Bodies {
  completion: CompletionBody
  chat: ChatBody
}

export interface ParsedBody<B> {
  readonly body: B
  /** Fields that nobody here knows. */
  readonly ignored: readonly string[]
}

/** @throws HttpError 400 naming the field */
export function parseBody<K extends keyof Bodies>(kind: K, raw: Record<string, unknown>): ParsedBody<Bodies[K]> {
  const body = Object.fromEntries(Object.entries(raw).filter(([, value]) => value !== null))
  refuseUnsupported(body, kind)
  if (kind === 'chat') refuseMessageFields(body['messages'])
  const schema = SCHEMAS[kind]
  const result = schema.safeParse(body)
  if (!result.success) {
    const issue = result.error.issues[0]!
    const param = fieldPath(issue.path) || 'body'
    const problem =
      issue.code === 'invalid_type' && issue.input === undefined && !(param in body) ? missing(issue) : issue.message
    throw new HttpError('SY_HTTP_INVALID_FIELD', { param, problem: problem.slice(0, 300) })
  }
  const known = (key: string) =>
    Object.hasOwn(schema.shape, key) || Object.hasOwn(REFUSED_FIELDS[kind], key) || INERT_FIELDS.has(key)
  checkTogether(kind, result.data as SharedBody & TogetherFields)
  return { body: result.data as Bodies[K], ignored: Object.keys(body).filter(key => !known(key)) }
}

interface TogetherFields {
  readonly echo?: boolean | undefined
  readonly logprobs?: boolean | number | undefined
  readonly top_logprobs?: number | undefined
  readonly max_completion_tokens?: number | undefined
}

/** Fields that are right by themselves and wrong together. */
function checkTogether(kind: keyof Bodies, body: SharedBody & TogetherFields): void {
  const bad = (param: string, problem: string): never => {
    throw new HttpError('SY_HTTP_INVALID_FIELD', { param, problem })
  }
  if (kind === 'completion' && body.max_tokens === 0 && body.echo !== true) {
    bad('max_tokens', 'expected at least 1; 0 needs echo')
  }
  if (kind === 'chat' && (body.top_logprobs ?? 0) > 0 && body.logprobs !== true) {
    bad('top_logprobs', 'it needs logprobs: true')
  }
  const most = body.max_completion_tokens ?? body.max_tokens
  if (most !== undefined && (body.min_tokens ?? 0) > most) bad('min_tokens', `expected at most max_tokens (${most})`)
}

const missing = (issue: z.core.$ZodIssue): string =>
  issue.message.endsWith('received undefined') ? 'the field is missing' : issue.message

/** `messages[0].content` */
export function fieldPath(path: readonly PropertyKey[]): string {
  return path
    .map((key, i) => (typeof key === 'number' ? `[${key}]` : i === 0 ? String(key) : `.${String(key)}`))
    .join('')
}

/** Pictures, sounds and tool calls inside messages, each by its place. */
function refuseMessageFields(messages: unknown): void {
  if (!Array.isArray(messages)) return
  messages.forEach((entry: unknown, i) => {
    if (typeof entry !== 'object' || entry === null) return
    const { content, tool_calls, function_call, audio } = entry as Readonly<Record<string, unknown>>
    const refuse = (param: string, reason: string): never => {
      throw new HttpError('SY_HTTP_UNSUPPORTED_FIELD', { param: `messages[${i}].${param}`, reason })
    }
    if (Array.isArray(tool_calls) && tool_calls.length > 0) refuse('tool_calls', 'tools cannot be called yet')
    if (function_call !== undefined && function_call !== null) refuse('function_call', 'functions cannot be called yet')
    if (audio !== undefined && audio !== null) refuse('audio', 'messages are text')
    if (!Array.isArray(content)) return
    content.forEach((part: unknown, j) => {
      const type = (part as { type?: unknown } | null)?.type
      if (typeof type === 'string' && type !== 'text')
        refuse(`content[${j}].type`, `messages are text, not ${type.slice(0, 40)}`)
    })
  })
}

/** The prompts of a completion: one text, several, one list of token ids, or several. @throws HttpError 400 */
export function readPrompts(prompt: unknown, vocabSize: number): readonly (string | readonly number[])[] {
  const bad = (param: string, problem: string): HttpError => new HttpError('SY_HTTP_INVALID_FIELD', { param, problem })
  if (prompt === undefined) throw bad('prompt', 'the field is missing')
  if (typeof prompt === 'string') return [prompt]
  if (!Array.isArray(prompt)) throw bad('prompt', 'expected a text, token ids, or a list of either')
  if (prompt.length === 0) throw bad('prompt', 'the list is empty')
  const ids = (list: readonly unknown[], param: string): readonly number[] => {
    if (list.length === 0) throw bad(param, 'the list is empty')
    list.forEach((id, i) => {
      if (!Number.isSafeInteger(id) || (id as number) < 0 || (id as number) >= vocabSize) {
        throw bad(`${param}[${i}]`, `expected a token id from 0 to ${vocabSize - 1}`)
      }
    })
    return list as readonly number[]
  }
  if (typeof prompt[0] === 'number') return [ids(prompt, 'prompt')]
  if (prompt.length > MAX_PROMPTS) throw bad('prompt', `${prompt.length} prompts, but at most ${MAX_PROMPTS} a request`)
  return prompt.map((entry: unknown, i) => {
    if (typeof entry === 'string') return entry
    if (Array.isArray(entry)) return ids(entry, `prompt[${i}]`)
    throw bad(`prompt[${i}]`, 'expected a text or a list of token ids')
  })
}

const MAX_PROMPTS = 1024
