// Requests to a real engine as its callers see them: events gathered into what a client would have.
import type { GenerationEvent } from '../../src/engine/index.js'

export interface Collected {
  readonly text: string
  /** Texts of the events, in order. */
  readonly pieces: readonly string[]
  readonly tokens: readonly number[]
  readonly finish: GenerationEvent['finish']
}

/** Reads a stream to its end. */
export async function collect(events: AsyncIterable<GenerationEvent>): Promise<Collected> {
  const pieces: string[] = []
  const tokens: number[] = []
  let finish: GenerationEvent['finish'] = null
  for await (const event of events) {
    pieces.push(event.text)
    tokens.push(...event.tokenIds)
    finish = event.finish ?? finish
  }
  return { text: pieces.join(''), pieces, tokens, finish }
}

/** Reads the first `count` events; the stream stays open. */
export async function first(events: AsyncIterator<GenerationEvent>, count: number): Promise<GenerationEvent[]> {
  const seen: GenerationEvent[] = []
  while (seen.length < count) {
    const { value, done } = await events.next()
    if (done) break
    seen.push(value)
  }
  return seen
}
