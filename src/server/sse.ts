// Server-sent events, written straight to the socket's response: a comment while nothing comes, an end for readers that
// stand still, and the source is told at once when the client goes away. It does not know what the messages mean.
//
// A handler returns `sseResponse`; whoever holds the node response starts it with `startSse`, once the headers are known.
import type { ServerResponse } from 'node:http'

/** One event. JSON holds no raw line breaks, so one data line is enough. */
export const sseData = (value: unknown): string => `data: ${JSON.stringify(value)}\n\n`

export const SSE_DONE = 'data: [DONE]\n\n'

const PING = ': ping\n\n'

const SSE_HEADERS = {
  'content-type': 'text/event-stream; charset=utf-8',
  'cache-control': 'no-cache',
  // Proxies such as nginx would hold chunks back otherwise.
  'x-accel-buffering': 'no',
} as const

export interface SseOptions {
  /** Milliseconds of silence after which a comment is sent, so that proxies keep the connection. */
  readonly pingMs: number
  /** Milliseconds a client may leave what was sent unread before it is given up. */
  readonly stallMs: number
  /** The client went away before the end (or stood still). Must make the source end soon. */
  onCancel(stalled: boolean): void
  /** Called once, when the stream is over for whatever reason. */
  onEnd(): void
}

interface Pending {
  readonly source: AsyncIterator<string>
  readonly options: SseOptions
}

const pending = new WeakMap<Response, Pending>()

/**
 * An answer that will stream event blocks. A new block is asked for only when the socket takes more.
 * `source` must not throw: errors are events by then.
 */
export function sseResponse(source: AsyncIterator<string>, options: SseOptions): Response {
  const response = new Response(null, { headers: SSE_HEADERS })
  pending.set(response, { source, options })
  return response
}

/** Writes head and events of an `sseResponse`. @returns whether `response` is one */
export function startSse(response: Response, outgoing: ServerResponse): boolean {
  const found = pending.get(response)
  if (found === undefined) return false
  outgoing.writeHead(response.status, [...response.headers].flat())
  void write(found, outgoing)
  return true
}

async function write({ source, options }: Pending, outgoing: ServerResponse): Promise<void> {
  let lastSent = performance.now()
  let gone = outgoing.destroyed
  let wake: (() => void) | null = null
  const leave = (stalled: boolean): void => {
    if (gone) return
    gone = true
    options.onCancel(stalled)
    wake?.()
  }
  const onClose = () => leave(false)
  const onDrain = () => wake?.()
  outgoing.on('close', onClose)
  outgoing.on('drain', onDrain)
  const timer = setInterval(
    () => {
      const silent = performance.now() - lastSent
      if (outgoing.writableNeedDrain) {
        if (silent < options.stallMs) return
        leave(true)
        outgoing.destroy()
      } else if (silent >= options.pingMs) {
        lastSent = performance.now()
        outgoing.write(PING)
      }
    },
    Math.max(10, Math.min(options.pingMs, options.stallMs) / 3),
  )
  if (gone) options.onCancel(false)
  try {
    for (let item = await source.next(); !item.done && !gone; item = await source.next()) {
      lastSent = performance.now()
      if (outgoing.write(item.value)) continue
      await new Promise<void>(resolve => {
        wake = resolve
        if (gone || !outgoing.writableNeedDrain) resolve()
      })
      wake = null
    }
  } finally {
    clearInterval(timer)
    outgoing.off('close', onClose)
    outgoing.off('drain', onDrain)
    void source.return?.()
    if (!outgoing.destroyed) {
      // A reader that stands still would keep the last bytes, and the socket, for ever.
      const last = setTimeout(() => outgoing.destroy(), options.stallMs).unref()
      outgoing.once('close', () => clearTimeout(last))
      outgoing.end()
    }
    options.onEnd()
  }
}
