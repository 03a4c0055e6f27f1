// From engine requests to an HTTP answer, whole or streamed, for completions and chat alike. The two differ only in the
// shape of their chunks, which they pass in.
import type { GenerationEvent } from '../../engine/request.js'
import type { RequestContext } from '../context.js'
import type { Ticket } from '../lifecycle.js'
import { SSE_DONE } from '../sse.js'
import { streamBlocks } from '../stream.js'
import { addUsage, type Choice, collectChoices, NO_USAGE, runChoices, usageBody } from './choices.js'
import type { Job } from './fan-out.js'
import type { SharedBody } from './schema.js'

type Fields = Readonly<Record<string, unknown>>

/** How one endpoint writes its objects. */
export interface Shape {
  /** Fields of every object: id, created, model. */
  readonly head: Fields
  readonly objectName: string
  readonly chunkName: string
  choice(index: number, choice: Choice): Fields
  /** What comes before the text of a choice: the role of a chat, the prompt of a completion that echoes it. */
  firstDelta(index: number, event: GenerationEvent): Fields | null
  delta(index: number, event: GenerationEvent): Fields
  lastDelta(index: number, finishReason: string): Fields
}

/** Consumes the ticket: it ends with the answer. */
export async function respond(
  context: RequestContext,
  ticket: Ticket,
  job: Job,
  body: SharedBody,
  shape: Shape,
): Promise<Response> {
  if (body.stream === true) return streamBlocks(context, ticket, encodeBlocks(context, ticket, job, body, shape))
  try {
    const { choices, usage } = await collectChoices(ticket, job)
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

/** Event blocks: one string for everything that is ready at a time. */
async function* encodeBlocks(
  context: RequestContext,
  ticket: Ticket,
  job: Job,
  body: SharedBody,
  shape: Shape,
): AsyncGenerator<string, void, undefined> {
  const wantsUsage = body.stream_options?.include_usage === true
  const withIds = body.return_token_ids === true
  // All chunks but the last differ in their one choice only: the rest is written once.
  const head = JSON.stringify({ ...shape.head, object: shape.chunkName }).slice(0, -1)
  const before = `data: ${head},"choices":[`
  const after = wantsUsage ? '],"usage":null}\n\n' : ']}\n\n'
  const chunk = (choice: Fields): string => before + JSON.stringify(choice) + after
  const begun = new Set<number>()
  let usage = NO_USAGE
  for await (const batch of runChoices(ticket, job.requests)) {
    let block = ''
    for (const { index, event } of batch) {
      if (!begun.has(index)) {
        begun.add(index)
        const delta = shape.firstDelta(index, event)
        if (delta !== null) block += chunk(delta)
      }
      const shown = event.text !== '' || event.logprobs !== undefined || (withIds && event.tokenIds.length > 0)
      if (shown) block += chunk(shape.delta(index, event))
      if (event.finish === null) continue
      block += chunk(shape.lastDelta(index, event.finish.reason))
      usage = addUsage(usage, event.finish.usage, index % job.choices === 0)
    }
    if (block !== '') yield block
  }
  context.note({ prompt_tokens: usage.promptTokens, completion_tokens: usage.completionTokens })
  yield (wantsUsage ? `${before}],"usage":${JSON.stringify(usageBody(usage))}}\n\n` : '') + SSE_DONE
}
