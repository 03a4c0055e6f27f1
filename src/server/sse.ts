// Server-sent events over a ReadableStream: one enqueue for all that is ready, comment pings while nothing comes, and
// the source is told at once when the client goes away. It does not know what the messages mean.

const encoder = new TextEncoder()
const PING = encoder.encode(': ping\n\n')

/** One event. JSON holds no raw line breaks, so one data line is enough. */
export const sseData = (value: unknown): string => `data: ${JSON.stringify(value)}\n\n`

export const SSE_DONE = 'data: [DONE]\n\n'

export const SSE_HEADERS = {
  'content-type': 'text/event-stream; charset=utf-8',
  'cache-control': 'no-cache',
  // Proxies such as nginx would hold chunks back otherwise.
  'x-accel-buffering': 'no',
} as const

export interface SseOptions {
  /** Milliseconds of silence after which a comment is sent, so that proxies keep the connection. */
  readonly pingMs: number
  /** The client went away before the end. Must make `source` end soon. */
  onCancel(): void
  /** Called once, when the stream is over for whatever reason. */
  onEnd(): void
}

/**
 * Streams encoded event blocks. A new block is asked for only when the reader wants one.
 * `source` must not throw: errors are events by then.
 */
export function sseStream(source: AsyncIterator<string>, options: SseOptions): ReadableStream<Uint8Array> {
  let lastSent = performance.now()
  let timer: NodeJS.Timeout | null = null
  const end = () => {
    if (timer === null) return
    clearInterval(timer)
    timer = null
    options.onEnd()
  }
  return new ReadableStream<Uint8Array>({
    start(controller) {
      timer = setInterval(
        () => {
          if (performance.now() - lastSent < options.pingMs || (controller.desiredSize ?? 0) <= 0) return
          lastSent = performance.now()
          controller.enqueue(PING)
        },
        Math.max(10, options.pingMs / 3),
      )
    },
    async pull(controller) {
      try {
        const { value, done } = await source.next()
        if (timer === null) return
        lastSent = performance.now()
        if (done) {
          controller.close()
          end()
        } else controller.enqueue(encoder.encode(value))
      } catch (error) {
        controller.error(error)
        end()
      }
    },
    cancel() {
      options.onCancel()
      end()
    },
  })
}
