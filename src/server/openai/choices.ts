// Runs the prompts of one HTTP request as engine requests and merges their events. The engine does the work; this file
// only sees to it that all of them end together: on the first error, on a client that left, on a server that stops.
import type { GenerationEvent, GenerationRequest, Usage } from '../../engine/request.js'
import { HttpError } from '../errors.js'
import type { Ticket } from '../lifecycle.js'

export interface ChoiceEvent {
  /** Index of the prompt, and so of the choice. */
  readonly index: number
  readonly event: GenerationEvent
}

/** Events in order of arrival; everything that waits is handed over at once, so a slow reader gets fewer, larger pieces. */
class Mailbox {
  #events: ChoiceEvent[] = []
  #error: unknown = null
  #open: number
  #wake: (() => void) | null = null

  constructor(writers: number) {
    this.#open = writers
  }

  push(event: ChoiceEvent): void {
    this.#events.push(event)
    this.#notify()
  }

  close(): void {
    this.#open--
    if (this.#open === 0) this.#notify()
  }

  fail(error: unknown): void {
    this.#error ??= error
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
    return this.#events.length === 0 ? null : this.#events.splice(0)
  }

  #notify(): void {
    this.#wake?.()
    this.#wake = null
  }
}

/**
 * All events of `requests`, as batches of what is ready. Ends (and aborts what still runs) with the ticket's signal.
 * @throws what the engine throws; HttpError SY_HTTP_ABORTED when the engine gave a request up
 */
export async function* runChoices(
  ticket: Ticket,
  requests: readonly GenerationRequest[],
): AsyncGenerator<readonly ChoiceEvent[], void, undefined> {
  const stop = new AbortController()
  const mailbox = new Mailbox(requests.length)
  const interrupted = () => {
    stop.abort(ticket.signal.reason)
    mailbox.fail(ticket.signal.reason)
  }
  if (ticket.signal.aborted) interrupted()
  else ticket.signal.addEventListener('abort', interrupted, { once: true })
  const pump = async (request: GenerationRequest, index: number): Promise<void> => {
    for await (const event of ticket.engine.generate({ ...request, signal: stop.signal })) {
      mailbox.push({ index, event })
      if (event.finish?.reason === 'abort') throw new HttpError('SY_HTTP_ABORTED')
    }
    mailbox.close()
  }
  try {
    requests.forEach((request, index) => {
      pump(request, index).catch((error: unknown) => mailbox.fail(error))
    })
    for (;;) {
      const batch = await mailbox.take()
      if (batch === null) return
      yield batch
    }
  } finally {
    ticket.signal.removeEventListener('abort', interrupted)
    stop.abort()
  }
}

/** A finished choice. */
export interface Choice {
  readonly text: string
  readonly tokenIds: readonly number[]
  readonly finishReason: string
}

export interface Outcome {
  readonly choices: readonly Choice[]
  readonly usage: Usage
}

export const NO_USAGE: Usage = { promptTokens: 0, completionTokens: 0, cachedTokens: 0 }

export const addUsage = (a: Usage, b: Usage): Usage => ({
  promptTokens: a.promptTokens + b.promptTokens,
  completionTokens: a.completionTokens + b.completionTokens,
  cachedTokens: a.cachedTokens + b.cachedTokens,
})

/** Runs everything to its end. */
export async function collectChoices(ticket: Ticket, requests: readonly GenerationRequest[]): Promise<Outcome> {
  const choices = requests.map(() => ({ text: '', tokenIds: [] as number[], finishReason: 'stop' }))
  let usage = NO_USAGE
  for await (const batch of runChoices(ticket, requests)) {
    for (const { index, event } of batch) {
      const choice = choices[index]!
      choice.text += event.text
      choice.tokenIds.push(...event.tokenIds)
      if (event.finish === null) continue
      choice.finishReason = event.finish.reason
      usage = addUsage(usage, event.finish.usage)
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
