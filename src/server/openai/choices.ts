// Runs the prompts of one HTTP request as engine requests and merges their events. The engine does the work; this file
// only sees to it that all of them end together: on the first error, on a client that left or reads too slowly, on a
// server that stops.
import type { GenerationEvent, GenerationRequest, TokenLogprob, Usage } from '../../engine/request.js'
import { HttpError } from '../errors.js'
import type { Ticket } from '../lifecycle.js'
import type { Job } from './fan-out.js'

export interface ChoiceEvent {
  /** Index of the engine request, and so of the choice. */
  readonly index: number
  readonly event: GenerationEvent
}

/** Events in order of arrival; everything that waits is handed over at once, so a slow reader gets fewer, larger pieces. */
class Mailbox {
  #events: ChoiceEvent[] = []
  #error: unknown = null
  #open: number
  #wake: (() => void) | null = null
  readonly #limit: number

  /** @param limit events that may wait for the reader */
  constructor(writers: number, limit: number) {
    this.#open = writers
    this.#limit = limit
  }

  push(event: ChoiceEvent): void {
    if (this.#events.length >= this.#limit) throw new HttpError('SY_HTTP_SLOW_READER', { limit: this.#limit })
    this.#events.push(event)
    this.#notify()
  }

  close(): void {
    this.#open--
    if (this.#open === 0) this.#notify()
  }

  fail(error: unknown): void {
    this.#error ??= error
    this.#events = []
    this.#notify()
  }

  /** null at the end. @throws the first error */
  async take(): Promise<readonly ChoiceEvent[] | null> {
    while (this.#events.length === 0 && this.#error === null && this.#open > 0) {
      await new Promise<void>(resolve => {
        this.#wake = resolve
      })
    }
    if (this.#error !== null) throw this.#error
    if (this.#events.length === 0) return null
    const taken = this.#events
    this.#events = []
    return taken
  }

  #notify(): void {
    const wake = this.#wake
    this.#wake = null
    wake?.()
  }
}

/**
 * All events of `requests`, as batches of what is ready. Ends (and aborts what still runs) with the ticket's signal, and
 * when more than the ticket's `maxBacklog` events a request wait for the caller.
 * @throws what the engine throws; HttpError SY_HTTP_ABORTED when the engine gave a request up
 */
export async function* runChoices(
  ticket: Ticket,
  requests: readonly GenerationRequest[],
): AsyncGenerator<readonly ChoiceEvent[], void, undefined> {
  const stop = new AbortController()
  const mailbox = new Mailbox(requests.length, ticket.maxBacklog * requests.length)
  const interrupted = () => {
    stop.abort(ticket.signal.reason)
    mailbox.fail(ticket.signal.reason)
  }
  if (ticket.signal.aborted) interrupted()
  else ticket.signal.addEventListener('abort', interrupted, { once: true })
  const pump = async (request: GenerationRequest, index: number): Promise<void> => {
    const watch = ticket.observer.begin(request)
    try {
      for await (const event of ticket.engine.generate({ ...request, signal: stop.signal })) {
        watch.event(event)
        mailbox.push({ index, event })
        if (event.finish?.reason === 'abort') throw new HttpError('SY_HTTP_ABORTED')
      }
    } finally {
      watch.end()
    }
    mailbox.close()
  }
  let over = false
  try {
    requests.forEach((request, index) => {
      pump(request, index).catch((error: unknown) => {
        stop.abort(error)
        mailbox.fail(error)
      })
    })
    for (;;) {
      const batch = await mailbox.take()
      if (batch === null) {
        over = true
        return
      }
      yield batch
    }
  } finally {
    ticket.signal.removeEventListener('abort', interrupted)
    if (!over) stop.abort()
  }
}

/** A finished choice. */
export interface Choice {
  readonly text: string
  readonly tokenIds: readonly number[]
  readonly finishReason: string
  /** One a token, when they were asked for. */
  readonly logprobs: readonly TokenLogprob[]
  readonly hasLogprobs: boolean
  /** One a prompt token, when they were asked for. */
  readonly promptLogprobs: readonly (TokenLogprob | null)[]
}

export interface Outcome {
  readonly choices: readonly Choice[]
  readonly usage: Usage
}

export const NO_USAGE: Usage = { promptTokens: 0, completionTokens: 0, cachedTokens: 0 }

/** @param withPrompt the prompt is counted once, whatever the number of its choices */
export const addUsage = (a: Usage, b: Usage, withPrompt: boolean): Usage => ({
  promptTokens: a.promptTokens + (withPrompt ? b.promptTokens : 0),
  completionTokens: a.completionTokens + b.completionTokens,
  cachedTokens: a.cachedTokens + (withPrompt ? b.cachedTokens : 0),
})

/** Runs everything to its end. */
export async function collectChoices(ticket: Ticket, job: Job): Promise<Outcome> {
  const choices = job.requests.map(request => ({
    text: '',
    tokenIds: [] as number[],
    finishReason: 'stop',
    logprobs: [] as TokenLogprob[],
    hasLogprobs: request.topLogprobs !== undefined,
    promptLogprobs: [] as readonly (TokenLogprob | null)[],
  }))
  let usage = NO_USAGE
  for await (const batch of runChoices(ticket, job.requests)) {
    for (const { index, event } of batch) {
      const choice = choices[index]!
      choice.text += event.text
      for (const id of event.tokenIds) choice.tokenIds.push(id)
      if (event.logprobs) choice.logprobs.push(...event.logprobs)
      if (event.promptLogprobs) choice.promptLogprobs = event.promptLogprobs
      if (event.finish === null) continue
      choice.finishReason = event.finish.reason
      usage = addUsage(usage, event.finish.usage, index % job.choices === 0)
    }
  }
  return { choices, usage }
}

/** OpenAI's usage object. */
export const usageBody = (usage: Usage) => ({
  prompt_tokens: usage.promptTokens,
  completion_tokens: usage.completionTokens,
  total_tokens: usage.promptTokens + usage.completionTokens,
  prompt_tokens_details: { cached_tokens: usage.cachedTokens },
})
