// A real server on a real socket over the echo engine, for server tests.
import { serverFlags } from '../src/config/flags.js'
import { createLogger, openServer, type RunningServer } from '../src/server/index.js'
import { EchoEngine, type EchoOptions } from './echo-engine.js'

export interface EchoServer extends AsyncDisposable {
  readonly server: RunningServer
  readonly engine: EchoEngine
  /** POSTs JSON (or raw text). */
  post(path: string, body: unknown, headers?: Record<string, string>): Promise<Response>
}

export async function serveEcho(
  flags: Parameters<typeof serverFlags>[0] = {},
  options: EchoOptions & { readonly pingMs?: number } = {},
): Promise<EchoServer> {
  const { pingMs, ...engineOptions } = options
  const server = await openServer(serverFlags({ port: 0, logLevel: 'silent', ...flags }), {
    log: createLogger('silent'),
    version: '0.0.0',
    ...(pingMs === undefined ? {} : { pingMs }),
  })
  const engine = new EchoEngine(engineOptions)
  server.attach(engine)
  return {
    server,
    engine,
    post: (path, body, headers = {}) =>
      fetch(server.url + path, {
        method: 'POST',
        headers: { 'content-type': 'application/json', ...headers },
        body: typeof body === 'string' ? body : JSON.stringify(body),
      }),
    async [Symbol.asyncDispose]() {
      server.abort()
      await server.close()
    },
  }
}

/** Waits for a condition that other tasks bring about; fails with `what` after 5 s. */
export async function until(condition: () => boolean, what: string): Promise<void> {
  const end = performance.now() + 5000
  while (!condition()) {
    if (performance.now() > end) throw new Error(`still not: ${what}`)
    await new Promise(resolve => setTimeout(resolve, 5))
  }
}
