// POST /tokenize and /detokenize (also under /v1): the model's tokenizer over HTTP, in the shapes vLLM and SGLang share.
import { z } from 'zod'
import type { ChatMessage, GenerationEngine } from '../../engine/request.js'
import { encodeText } from '../encode.js'
import { HttpError } from '../errors.js'
import { fieldPath } from '../openai/schema.js'
import { tokenTexts } from '../openai/token-text.js'

const messages = z.array(z.looseObject({ role: z.string().min(1), content: z.string() })).min(1)

const tokenizeBody = z.looseObject({
  prompt: z.union([z.string(), z.array(z.string()).max(1024)]).optional(),
  messages: messages.optional(),
  add_special_tokens: z.boolean().optional(),
  add_generation_prompt: z.boolean().optional(),
  return_token_strs: z.boolean().optional(),
})

const ids = z.array(z.int().min(0))
const detokenizeBody = z.looseObject({
  tokens: z.union([ids, z.array(ids).max(1024)]),
  skip_special_tokens: z.boolean().optional(),
})

function check<T extends z.ZodType>(schema: T, raw: Record<string, unknown>): z.infer<T> {
  const body = Object.fromEntries(Object.entries(raw).filter(([, value]) => value !== null))
  const result = schema.safeParse(body)
  if (result.success) return result.data
  const issue = result.error.issues[0]!
  const problem = issue.message.slice(0, 300)
  throw new HttpError('SY_HTTP_INVALID_FIELD', { param: fieldPath(issue.path) || 'body', problem })
}

/** {count, max_model_len, tokens}; lists for a list of prompts. @throws HttpError 400 */
export async function tokenize(engine: GenerationEngine, raw: Record<string, unknown>): Promise<Response> {
  const body = check(tokenizeBody, raw)
  if ((body.prompt === undefined) === (body.messages === undefined)) {
    throw new HttpError('SY_HTTP_INVALID_FIELD', { param: 'prompt', problem: 'give either prompt or messages' })
  }
  const texts = body.messages
    ? [render(engine, body.messages, body.add_generation_prompt ?? true)]
    : [body.prompt!].flat()
  const addSpecialTokens = body.add_special_tokens ?? body.messages === undefined
  const lists: number[][] = []
  for (const text of texts) lists.push(await encodeText(engine, text, { addSpecialTokens }, 'prompt'))
  const names = tokenTexts(engine)
  const many = Array.isArray(body.prompt)
  const strings = () => lists.map(list => list.map(id => names.of(id).text))
  return Response.json({
    count: many ? lists.map(list => list.length) : lists[0]!.length,
    max_model_len: engine.contextLength,
    tokens: many ? lists : lists[0],
    ...(body.return_token_strs === true ? { token_strs: many ? strings() : strings()[0] } : {}),
  })
}

function render(engine: GenerationEngine, list: readonly ChatMessage[], addGenerationPrompt: boolean): string {
  const { tokenizer, modelName: model } = engine
  if (tokenizer === null) throw new HttpError('SY_HTTP_NO_TOKENIZER', { model, param: 'messages' })
  if (!tokenizer.hasChatTemplate) throw new HttpError('SY_HTTP_NO_CHAT_TEMPLATE', { model, param: 'messages' })
  return tokenizer.applyChatTemplate(list, { add_generation_prompt: addGenerationPrompt })
}

/** {prompt, text}: the same text under vLLM's name and SGLang's. @throws HttpError 400 */
export function detokenize(engine: GenerationEngine, raw: Record<string, unknown>): Response {
  const { tokens, skip_special_tokens: skip } = check(detokenizeBody, raw)
  const { tokenizer, modelName: model } = engine
  if (tokenizer === null) throw new HttpError('SY_HTTP_NO_TOKENIZER', { model, param: 'tokens' })
  const many = Array.isArray(tokens[0])
  const lists = (many ? tokens : [tokens]) as readonly (readonly number[])[]
  lists.forEach((list, i) => {
    const outside = list.findIndex(id => id >= engine.vocabSize)
    if (outside < 0) return
    const param = many ? `tokens[${i}][${outside}]` : `tokens[${outside}]`
    const problem = `expected a token id from 0 to ${engine.vocabSize - 1}`
    throw new HttpError('SY_HTTP_INVALID_FIELD', { param, problem })
  })
  const texts = lists.map(list => tokenizer.decode(list, { skipSpecialTokens: skip ?? true }))
  const text = many ? texts : texts[0]
  return Response.json({ prompt: text, text })
}
