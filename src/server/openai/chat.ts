// POST /v1/chat/completions: messages through the model's chat template, `n` choices out. The template writes the special
// tokens, so encoding adds none.
import { randomUUID } from 'node:crypto'
import type { ChatMessage, TokenLogprob } from '../../engine/request.js'
import type { RequestContext } from '../context.js'
import { encodeText } from '../encode.js'
import { HttpError } from '../errors.js'
import type { Ticket } from '../lifecycle.js'
import { fanOut } from './fan-out.js'
import { chatLogprobs } from './logprobs.js'
import { respond, type Shape } from './respond.js'
import { outputLimit, samplingDefaults, samplingOf } from './sampling.js'
import type { ChatBody } from './schema.js'
import { tokenTexts } from './token-text.js'

/** Ends the ticket with the answer. @throws HttpError, or the engine's and the template's errors */
export async function chatCompletions(context: RequestContext, ticket: Ticket, body: ChatBody): Promise<Response> {
  const { engine } = ticket
  const { tokenizer, modelName: model } = engine
  if (tokenizer === null) throw new HttpError('SY_HTTP_NO_TOKENIZER', { model, param: 'messages' })
  if (!tokenizer.hasChatTemplate) throw new HttpError('SY_HTTP_NO_CHAT_TEMPLATE', { model, param: 'messages' })
  const text = tokenizer.applyChatTemplate(body.messages.map(plainMessage), {
    add_generation_prompt: body.add_generation_prompt ?? true,
    ...body.chat_template_kwargs,
  })
  const inputIds = await encodeText(engine, text, { addSpecialTokens: false }, 'messages')
  if (inputIds.length === 0) {
    throw new HttpError('SY_HTTP_INVALID_FIELD', { param: 'messages', problem: 'they render to an empty prompt' })
  }
  const maxTokens = outputLimit(engine.contextLength, inputIds.length, {
    asked: body.max_completion_tokens ?? body.max_tokens,
    otherwise: engine.contextLength,
    outputParam: body.max_completion_tokens === undefined ? 'max_tokens' : 'max_completion_tokens',
    promptParam: 'messages',
  })
  const id = `chatcmpl-${randomUUID()}`
  const request = {
    id,
    inputIds,
    sampling: samplingOf(body, samplingDefaults(engine), maxTokens, engine.vocabSize),
    ...(body.routed_dp_rank === undefined ? {} : { routedDpRank: body.routed_dp_rank }),
    ...(body.priority === undefined ? {} : { priority: body.priority }),
    ...(body.logprobs === true ? { topLogprobs: body.top_logprobs ?? 0 } : {}),
  }
  const texts = tokenTexts(engine)
  const shape = shapeOf(id, model, body.return_token_ids === true, found => (found ? chatLogprobs(texts, found) : null))
  return respond(context, ticket, fanOut([request], body.n ?? 1), body, shape)
}

/** Text parts joined; `developer`, OpenAI's new name of `system`, under the name that templates know. */
function plainMessage(message: ChatBody['messages'][number]): ChatMessage {
  const { role, content, name } = message
  return {
    role: role === 'developer' ? 'system' : role,
    content: typeof content === 'string' ? content : content.map(part => part.text).join(''),
    ...(typeof name === 'string' ? { name } : {}),
  }
}

const shapeOf = (
  id: string,
  model: string,
  withIds: boolean,
  logprobsOf: (found: readonly TokenLogprob[] | undefined) => unknown,
): Shape => ({
  head: { id, created: Math.floor(Date.now() / 1000), model },
  objectName: 'chat.completion',
  chunkName: 'chat.completion.chunk',
  choice: (index, { text, tokenIds, finishReason, logprobs, hasLogprobs }) => ({
    index,
    message: { role: 'assistant', content: text, refusal: null },
    ...(withIds ? { token_ids: tokenIds } : {}),
    logprobs: logprobsOf(hasLogprobs ? logprobs : undefined),
    finish_reason: finishReason,
  }),
  firstDelta: index => ({ index, delta: { role: 'assistant', content: '' }, logprobs: null, finish_reason: null }),
  delta: (index, { text, tokenIds, logprobs }) => ({
    index,
    delta: { content: text },
    ...(withIds ? { token_ids: tokenIds } : {}),
    logprobs: logprobsOf(logprobs),
    finish_reason: null,
  }),
  lastDelta: (index, finishReason) => ({ index, delta: {}, logprobs: null, finish_reason: finishReason }),
})
