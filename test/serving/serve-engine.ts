// A real server on a real socket over any engine, for tests of serving.
import { serverFlags } from '../../src/config/flags.js'
import type { GenerationEngine } from '../../src/engine/request.js'
import { createLogger, openServer, type RunningServer } from '../../src/server/index.js'

export interface ServedEngine<E> extends AsyncDisposable {
  readonly server: RunningServer
  readonly engine: E
  readonly url: string
  post(path: string, body: unknown, init?: RequestInit): Promise<Response>
  /** POST, status 200, parsed. */
  json<T = Record<string, never>>(path: string, body: unknown): Promise<T>
}

/** Closes the engine with the server. */
export async function serveEngine<E extends GenerationEngine>(
  engine: E,
  flags: Parameters<typeof serverFlags>[0] = {},
): Promise<ServedEngine<E>> {
  const server = await openServer(serverFlags({ port: 0, logLevel: 'silent', ...flags }), {
    log: createLogger('silent'),
    version: '0.0.0',
  })
  server.attach(engine)
  const post = (path: string, body: unknown, init: RequestInit = {}) =>
    fetch(server.url + path, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify(body),
      ...init,
    })
  return {
    server,
    engine,
    url: server.url,
    post,
    async json<T>(path: string, body: unknown): Promise<T> {
      const response = await post(path, body)
      const text = await response.text()
      if (response.status !== 200) throw new Error(`${path} answered ${response.status}: ${text}`)
      return JSON.parse(text) as T
    },
    async [Symbol.asyncDispose]() {
      server.abort()
      await server.close()
      await engine.close(0)
    },
  }
}
