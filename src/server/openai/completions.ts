// POST /v1/completions: text or token ids in, text out. One choice a prompt.
import { randomUUID } from 'node:crypto'
import type { GenerationRequest } from '../../engine/request.js'
import type { RequestContext } from '../context.js'
import { HttpError } from '../errors.js'
import type { Ticket } from '../lifecycle.js'
import { respond, type Shape } from './respond.js'
import { outputLimit, samplingDefaults, samplingOf } from './sampling.js'
import { type CompletionBody, readPrompts } from './schema.js'

/** OpenAI's default of max_tokens for completions. */
const DEFAULT_MAX_TOKENS = 16

/** Ends the ticket with the answer. @throws HttpError, or the engine's errors */
export function completions(context: RequestContext, ticket: Ticket, body: CompletionBody): Promise<Response> {
  const { engine } = ticket
  const defaults = samplingDefaults(engine)
  const id = `cmpl-${randomUUID()}`
  const prompts = readPrompts(body.prompt, engine.vocabSize)
  const requests = prompts.map((prompt, i): GenerationRequest => {
    const promptParam = prompts.length === 1 ? 'prompt' : `prompt[${i}]`
    const inputIds = typeof prompt === 'string' ? encode(ticket, prompt) : prompt
    if (inputIds.length === 0)
      throw new HttpError('SY_HTTP_INVALID_FIELD', { param: promptParam, problem: 'it is empty' })
    const maxTokens = outputLimit(engine.contextLength, inputIds.length, {
      asked: body.max_tokens,
      otherwise: DEFAULT_MAX_TOKENS,
      outputParam: 'max_tokens',
      promptParam,
    })
    return {
      id: prompts.length === 1 ? id : `${id}-${i}`,
      inputIds,
      sampling: samplingOf(body, defaults, maxTokens),
      ...(body.routed_dp_rank === undefined ? {} : { routedDpRank: body.routed_dp_rank }),
    }
  })
  return respond(context, ticket, requests, body, shapeOf(id, engine.modelName, body.return_token_ids === true))
}

function encode({ engine }: Ticket, text: string): number[] {
  if (engine.tokenizer === null)
    throw new HttpError('SY_HTTP_NO_TOKENIZER', { model: engine.modelName, param: 'prompt' })
  return engine.tokenizer.encode(text, { addSpecialTokens: true })
}

const shapeOf = (id: string, model: string, withIds: boolean): Shape => ({
  head: { id, created: Math.floor(Date.now() / 1000), model },
  objectName: 'text_completion',
  chunkName: 'text_completion',
  choice: (index, { text, tokenIds, finishReason }) => ({
    index,
    text,
    ...(withIds ? { token_ids: tokenIds } : {}),
    logprobs: null,
    finish_reason: finishReason,
  }),
  firstDelta: () => null,
  delta: (index, text, ids) => ({
    index,
    text,
    ...(ids === null ? {} : { token_ids: ids }),
    logprobs: null,
    finish_reason: null,
  }),
  lastDelta: (index, finishReason) => ({ index, text: '', logprobs: null, finish_reason: finishReason }),
})
