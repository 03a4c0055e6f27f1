// POST /generate: SGLang's native API. The answer is one object, or a list for a batch; a stream sends for each prompt its
// whole text so far, as SGLang does.
import type { Finish, GenerationEvent, TokenLogprob } from '../../engine/request.js'
import type { RequestContext } from '../context.js'
import type { Ticket } from '../lifecycle.js'
import { runChoices } from '../openai/choices.js'
import { finite } from '../openai/logprobs.js'
import { type TokenTexts, tokenTexts } from '../openai/token-text.js'
import { SSE_DONE, sseData } from '../sse.js'
import { streamBlocks } from '../stream.js'
import { type GenerateJob, generateJob } from './generate-requests.js'
import type { GenerateBody } from './generate-schema.js'

/** (log-probability, token id, text or null) */
type Triple = readonly [number | null, number, string | null]

/** One engine request so far. */
class Output {
  readonly #job: GenerateJob
  readonly #index: number
  readonly #texts: TokenTexts | null
  readonly #begun = performance.now()
  #text = ''
  readonly #ids: number[] = []
  readonly #logprobs: TokenLogprob[] = []
  #prompt: readonly (TokenLogprob | null)[] = []
  #finish: Finish | null = null
  #dpRank: number | undefined

  constructor(job: GenerateJob, index: number, texts: TokenTexts | null) {
    this.#job = job
    this.#index = index
    this.#texts = texts
  }

  take(event: GenerationEvent): void {
    this.#text += event.text
    for (const id of event.tokenIds) this.#ids.push(id)
    if (event.logprobs) this.#logprobs.push(...event.logprobs)
    if (event.promptLogprobs) this.#prompt = event.promptLogprobs
    this.#finish = event.finish
    this.#dpRank = event.dpRank ?? this.#dpRank
  }

  get usage(): Finish['usage'] | undefined {
    return this.#finish?.usage
  }

  body(): Readonly<Record<string, unknown>> {
    const request = this.#job.requests[this.#index]!
    const seconds = (performance.now() - this.#begun) / 1000
    return {
      text: this.#text,
      output_ids: this.#ids,
      meta_info: {
        id: this.#job.ids[this.#index],
        finish_reason: reasonBody(this.#finish, this.#ids.length),
        prompt_tokens: request.inputIds.length,
        completion_tokens: this.#ids.length,
        cached_tokens: this.#finish?.usage.cachedTokens ?? 0,
        ...(this.#dpRank === undefined ? {} : { dp_rank: this.#dpRank }),
        ...(request.topLogprobs === undefined ? {} : this.#logprobLists(request.inputIds)),
        ...(this.#finish === null ? {} : { e2e_latency: Number(seconds.toFixed(6)) }),
      },
    }
  }

  #logprobLists(inputIds: readonly number[]): Readonly<Record<string, unknown>> {
    const start = this.#job.logprobStart[this.#index] ?? null
    const prompt = start === null ? [] : inputIds.slice(start)
    const found = prompt.map((_, i) => this.#prompt[start! + i] ?? null)
    return {
      input_token_logprobs: prompt.map((id, i) => this.#triple(id, found[i]?.logprob ?? null)),
      output_token_logprobs: this.#logprobs.map(l => this.#triple(l.token, l.logprob)),
      input_top_logprobs: found.map(l => l && this.#tops(l)),
      output_top_logprobs: this.#logprobs.map(l => this.#tops(l)),
    }
  }

  #tops(found: TokenLogprob): readonly Triple[] {
    return found.top.map(t => this.#triple(t.token, t.logprob))
  }

  #triple(id: number, logprob: number | null): Triple {
    return [logprob === null ? null : finite(logprob), id, this.#texts?.of(id).text ?? null]
  }
}

function reasonBody(finish: Finish | null, tokens: number): unknown {
  if (finish === null) return null
  if (finish.reason === 'length') return { type: 'length', length: tokens }
  return finish.matched === undefined ? { type: finish.reason } : { type: finish.reason, matched: finish.matched }
}

/** Consumes the ticket: it ends with the answer. */
export async function generate(context: RequestContext, ticket: Ticket, body: GenerateBody): Promise<Response> {
  const { engine } = ticket
  const job = await generateJob(engine, body)
  const texts = body.return_text_in_logprobs === true ? tokenTexts(engine) : null
  const outputs = job.requests.map((_, index) => new Output(job, index, texts))
  const note = () =>
    context.note({
      prompt_tokens: outputs.reduce((sum, o, i) => sum + (i % job.choices === 0 ? (o.usage?.promptTokens ?? 0) : 0), 0),
      completion_tokens: outputs.reduce((sum, o) => sum + (o.usage?.completionTokens ?? 0), 0),
    })
  if (body.stream === true) return streamBlocks(context, ticket, blocks(ticket, job, outputs, note))
  try {
    for await (const batch of runChoices(ticket, job.requests)) {
      for (const { index, event } of batch) outputs[index]!.take(event)
    }
    note()
    const bodies = outputs.map(output => output.body())
    return Response.json(job.batch ? bodies : bodies[0])
  } finally {
    ticket.end()
  }
}

async function* blocks(
  ticket: Ticket,
  job: GenerateJob,
  outputs: readonly Output[],
  note: () => void,
): AsyncGenerator<string, void, undefined> {
  for await (const batch of runChoices(ticket, job.requests)) {
    // Texts are cumulative: of several events of one prompt the last says it all.
    const touched = new Set<number>()
    for (const { index, event } of batch) {
      outputs[index]!.take(event)
      touched.add(index)
    }
    let block = ''
    for (const index of touched) {
      const body = outputs[index]!.body()
      block += sseData(job.batch ? { ...body, index } : body)
    }
    yield block
  }
  note()
  yield SSE_DONE
}
