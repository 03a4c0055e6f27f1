// POST /v1/completions: text or token ids in, text out. `n` choices a prompt.
import { randomUUID } from 'node:crypto'
import type { GenerationEngine, GenerationRequest } from '../../engine/request.js'
import type { RequestContext } from '../context.js'
import { encodeText } from '../encode.js'
import { HttpError } from '../errors.js'
import type { Ticket } from '../lifecycle.js'
import { fanOut } from './fan-out.js'
import { CompletionLogprobWriter } from './logprobs.js'
import { respond, type Shape } from './respond.js'
import { outputLimit, samplingDefaults, samplingOf } from './sampling.js'
import { type CompletionBody, readPrompts } from './schema.js'
import { tokenTexts } from './token-text.js'

/** OpenAI's default of max_tokens for completions. */
const DEFAULT_MAX_TOKENS = 16

/** Ends the ticket with the answer. @throws HttpError, or the engine's errors */
export async function completions(context: RequestContext, ticket: Ticket, body: CompletionBody): Promise<Response> {
  const { engine } = ticket
  const defaults = samplingDefaults(engine)
  const id = `cmpl-${randomUUID()}`
  const prompts = readPrompts(body.prompt, engine.vocabSize)
  const top = body.logprobs === false ? undefined : body.logprobs
  const withPrompt = body.echo === true && (top !== undefined || body.max_tokens === 0)
  const requests: GenerationRequest[] = []
  for (const [i, prompt] of prompts.entries()) {
    const promptParam = prompts.length === 1 ? 'prompt' : `prompt[${i}]`
    const inputIds =
      typeof prompt === 'string' ? await encodeText(engine, prompt, { addSpecialTokens: true }, 'prompt') : prompt
    if (inputIds.length === 0)
      throw new HttpError('SY_HTTP_INVALID_FIELD', { param: promptParam, problem: 'it is empty' })
    const maxTokens = outputLimit(engine.contextLength, inputIds.length, {
      asked: body.max_tokens,
      otherwise: DEFAULT_MAX_TOKENS,
      outputParam: 'max_tokens',
      promptParam,
    })
    requests.push({
      id: prompts.length === 1 ? id : `${id}-${i}`,
      inputIds,
      sampling: samplingOf(body, defaults, maxTokens, engine.vocabSize),
      ...(body.routed_dp_rank === undefined ? {} : { routedDpRank: body.routed_dp_rank }),
      ...(body.priority === undefined ? {} : { priority: body.priority }),
      ...(top === undefined ? {} : { topLogprobs: top }),
      ...(withPrompt ? { promptTopLogprobs: top ?? 0 } : {}),
    })
  }
  const job = fanOut(requests, body.n ?? 1)
  const prefix = (index: number): string => {
    const prompt = prompts[Math.floor(index / job.choices)]!
    return typeof prompt === 'string' ? prompt : (engine.tokenizer?.decode(prompt, { skipSpecialTokens: true }) ?? '')
  }
  const ids = (index: number) => job.requests[index]!.inputIds
  return respond(context, ticket, job, body, shapeOf(id, engine, body, top, body.echo === true ? prefix : null, ids))
}

/** @param prefix text of the prompt of each choice, when it is echoed */
function shapeOf(
  id: string,
  engine: GenerationEngine,
  body: CompletionBody,
  top: number | undefined,
  prefix: ((index: number) => string) | null,
  promptIds: (index: number) => readonly number[],
): Shape {
  const withIds = body.return_token_ids === true
  const writers = new Map<number, CompletionLogprobWriter>()
  const writerOf = (index: number): CompletionLogprobWriter => {
    let writer = writers.get(index)
    if (writer === undefined) {
      writer = new CompletionLogprobWriter(tokenTexts(engine), top ?? 0)
      writers.set(index, writer)
    }
    return writer
  }
  return {
    head: { id, created: Math.floor(Date.now() / 1000), model: engine.modelName },
    objectName: 'text_completion',
    chunkName: 'text_completion',
    choice(index, { text, tokenIds, finishReason, logprobs, promptLogprobs }) {
      const echoed = prefix !== null
      const tokens = echoed ? [...promptIds(index), ...tokenIds] : tokenIds
      const lists = echoed ? [...promptLogprobs, ...logprobs] : logprobs
      return {
        index,
        text: echoed ? prefix(index) + text : text,
        ...(withIds ? { token_ids: tokenIds } : {}),
        logprobs: top === undefined ? null : writerOf(index).write(tokens, lists),
        finish_reason: finishReason,
      }
    },
    firstDelta(index, event) {
      if (prefix === null) return null
      const logprobs = top === undefined ? null : writerOf(index).write(promptIds(index), event.promptLogprobs ?? [])
      return { index, text: prefix(index), logprobs, finish_reason: null }
    },
    delta: (index, { text, tokenIds, logprobs }) => ({
      index,
      text,
      ...(withIds ? { token_ids: tokenIds } : {}),
      logprobs: top === undefined || logprobs === undefined ? null : writerOf(index).write(tokenIds, logprobs),
      finish_reason: null,
    }),
    lastDelta: (index, finishReason) => ({ index, text: '', logprobs: null, finish_reason: finishReason }),
  }
}
