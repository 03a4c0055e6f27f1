// Reading what the server answers: the error of a refusal, and every event of a stream.
import { createParser, type EventSourceMessage } from 'eventsource-parser'

interface ErrorAnswer {
  readonly error: {
    readonly message: string
    readonly type: string
    readonly param: string | null
    readonly code: string
  }
}

export const errorOf = async (response: Response): Promise<ErrorAnswer['error']> =>
  ((await response.json()) as ErrorAnswer).error

/** Every event and comment of a stream, in order. */
export async function readEvents(response: Response): Promise<string[]> {
  const seen: string[] = []
  const parser = createParser({
    onEvent: (event: EventSourceMessage) => seen.push(event.data),
    onComment: comment => seen.push(`:${comment}`),
    onError: error => {
      throw error
    },
  })
  const decoder = new TextDecoder()
  for await (const chunk of response.body as unknown as AsyncIterable<Uint8Array>) {
    parser.feed(decoder.decode(chunk, { stream: true }))
  }
  return seen
}
