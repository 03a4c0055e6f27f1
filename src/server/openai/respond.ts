// From engine requests to an HTTP answer, whole or streamed, for completions and chat alike. The two differ only in the
// shape of their chunks, which they pass in.
import type { GenerationRequest, Usage } from '../../engine/request.js'
import type { RequestContext } from '../context.js'
import { HttpError } from '../errors.js'
import type { Ticket } from '../lifecycle.js'
import { SSE_DONE, SSE_HEADERS, sseData, sseStream } from '../sse.js'
import { addUsage, type Choice, collectChoices, NO_USAGE, runChoices, usageBody } from './choices.js'
import { errorBody, presentable } from './error-body.js'
import type { SharedBody } from './schema.js'

/** How one endpoint writes its objects. */
export interface Shape {
  /** Fields of every object: id, created, model. */
  readonly head: Readonly<Record<string, unknown>>
  readonly objectName: string
  readonly chunkName: string
  choice(index: number, choice: Choice): Readonly<Record<string, unknown>>
  /** What the first chunk of a choice says beside its text (chat: the role). */
  firstDelta(index: number): Readonly<Record<string, unknown>> | null
  delta(index: number, text: string, tokenIds: readonly number[] | null): Readonly<Record<string, unknown>>
  lastDelta(index: number, finishReason: string): Readonly<Record<string, unknown>>
}

/** Milliseconds to wait for a first event before the status line goes out: errors until then get their own status. */
const STATUS_WAIT_MS = 1000

/** Consumes the ticket: it ends with the answer. */
export async function respond(
  context: RequestContext,
  ticket: Ticket,
  requests: readonly GenerationRequest[],
  body: SharedBody,
  shape: Shape,
): Promise<Response> {
  if (body.stream === true) return stream(context, ticket, requests, body, shape)
  try {
    const { choices, usage } = await collectChoices(ticket, requests)
    context.note({ prompt_tokens: usage.promptTokens, completion_tokens: usage.completionTokens })
    return Response.json({
      ...shape.head,
      object: shape.objectName,
      choices: choices.map((choice, index) => shape.choice(index, choice)),
      usage: usageBody(usage),
    })
  } finally {
    ticket.end()
  }
}

async function stream(
  context: RequestContext,
  ticket: Ticket,
  requests: readonly GenerationRequest[],
  body: SharedBody,
  shape: Shape,
): Promise<Response> {
  const blocks = encodeBlocks(context, ticket, requests, body, shape)
  const first = blocks.next()
  try {
    await Promise.race([first, new Promise(resolve => setTimeout(resolve, STATUS_WAIT_MS).unref())])
  } catch (error) {
    ticket.end()
    throw error
  }
  const source = withoutThrowing(first, blocks, error => {
    const shown = presentable(error, context.requestId)
    context.fail(shown)
    return sseData(errorBody(shown))
  })
  const writeLog = context.holdLog()
  const readable = sseStream(source, {
    pingMs: context.pingMs,
    onCancel: () => ticket.abort(new HttpError('SY_HTTP_CLIENT_GONE')),
    onEnd: () => {
      ticket.end()
      writeLog()
    },
  })
  return new Response(readable, { headers: SSE_HEADERS })
}

/** `blocks` with its already requested first item in front, and a thrown error as a last item. */
async function* withoutThrowing(
  first: Promise<IteratorResult<string, void>>,
  blocks: AsyncGenerator<string, void, undefined>,
  asBlock: (error: unknown) => string,
): AsyncGenerator<string, void, undefined> {
  try {
    for (let item = await first; !item.done; item = await blocks.next()) yield item.value
  } catch (error) {
    yield asBlock(error)
  }
}

/** Event blocks: one string for everything that is ready at a time. */
async function* encodeBlocks(
  context: RequestContext,
  ticket: Ticket,
  requests: readonly GenerationRequest[],
  body: SharedBody,
  shape: Shape,
): AsyncGenerator<string, void, undefined> {
  const wantsUsage = body.stream_options?.include_usage === true
  const chunk = (choices: readonly unknown[], usage: Usage | null): string =>
    sseData({
      ...shape.head,
      object: shape.chunkName,
      choices,
      ...(wantsUsage ? { usage: usage === null ? null : usageBody(usage) } : {}),
    })
  const begun = new Set<number>()
  let usage = NO_USAGE
  for await (const batch of runChoices(ticket, requests)) {
    let block = ''
    for (const { index, event } of batch) {
      if (!begun.has(index)) {
        begun.add(index)
        const delta = shape.firstDelta(index)
        if (delta !== null) block += chunk([delta], null)
      }
      const ids = body.return_token_ids === true ? event.tokenIds : null
      if (event.text !== '' || (ids !== null && ids.length > 0))
        block += chunk([shape.delta(index, event.text, ids)], null)
      if (event.finish === null) continue
      block += chunk([shape.lastDelta(index, event.finish.reason)], null)
      usage = addUsage(usage, event.finish.usage)
    }
    if (block !== '') yield block
  }
  context.note({ prompt_tokens: usage.promptTokens, completion_tokens: usage.completionTokens })
  yield `${wantsUsage ? chunk([], usage) : ''}${SSE_DONE}`
}
