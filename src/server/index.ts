// The HTTP server over any GenerationEngine: OpenAI's API, health, introspection and the page.
// Order of life: open (socket bound, answers 503) → attach (requests are taken) → drain → close.
import type { ServerFlags } from '../config/flags.js'
import type { GenerationEngine } from '../engine/request.js'
import { createApp } from './app.js'
import { HttpError } from './errors.js'
import { Lifecycle, type Phase } from './lifecycle.js'
import { bind } from './listen.js'
import type { Logger } from './log.js'

export { HttpError } from './errors.js'
export type { Phase } from './lifecycle.js'
export { createLogger, type Logger } from './log.js'

export interface ServerOptions {
  readonly log: Logger
  readonly version: string
  /** Milliseconds of silence before a stream sends a comment; 15 s unless given. */
  readonly pingMs?: number
}

export interface RunningServer {
  readonly url: string
  readonly port: number
  readonly phase: Phase
  /** Requests that use the engine now. */
  readonly inFlight: number
  /** Requests are taken from now on. The engine stays the caller's to close. */
  attach(engine: GenerationEngine): void
  /**
   * Refuses new requests (503), lets running ones finish for `limitMs`, then aborts those left with an error.
   * @returns how many were aborted
   */
  drain(limitMs: number): Promise<number>
  /** Aborts everything that runs, now. */
  abort(): void
  /** Closes the socket and every connection. Idempotent. */
  close(): Promise<void>
}

/** @throws ConfigError when the port cannot be bound */
export async function openServer(flags: ServerFlags, options: ServerOptions): Promise<RunningServer> {
  const lifecycle = new Lifecycle(flags)
  const app = createApp({
    lifecycle,
    flags,
    log: options.log,
    version: options.version,
    pingMs: options.pingMs ?? 15_000,
  })
  const { server, port, url } = await bind((request, env) => app.fetch(request, env), flags)
  const abort = () => lifecycle.abortAll(new HttpError('SY_HTTP_ABORTED'))
  let closing: Promise<void> | null = null
  return {
    url,
    port,
    get phase() {
      return lifecycle.phase
    },
    get inFlight() {
      return lifecycle.inFlight
    },
    attach: engine => lifecycle.attach(engine),
    abort,
    async drain(limitMs) {
      lifecycle.startDraining()
      await within(lifecycle.idle(), limitMs)
      const left = lifecycle.inFlight
      abort()
      await within(lifecycle.idle(), FLUSH_MS)
      return left
    },
    close() {
      closing ??= new Promise<void>(resolve => {
        server.close(() => resolve())
        server.closeIdleConnections()
        setTimeout(() => server.closeAllConnections(), FLUSH_MS).unref()
      })
      return closing
    },
  }
}

/** Milliseconds that last bytes get to reach their clients. */
const FLUSH_MS = 500

async function within(done: Promise<void>, limitMs: number): Promise<void> {
  let timer: NodeJS.Timeout | undefined
  await Promise.race([
    done,
    new Promise<void>(resolve => {
      timer = setTimeout(resolve, limitMs)
    }),
  ])
  clearTimeout(timer)
}
