// The socket. It is bound before a model is loaded, so a port in use is found at once and /health can say "loading".
import { createServer, type Server } from 'node:http'
import type { AddressInfo, Socket } from 'node:net'
import { getRequestListener } from '@hono/node-server'
import { ConfigError } from '../config/config-errors.js'
import type { ServerFlags } from '../config/flags.js'
import type { NodeBindings } from './context.js'
import { HttpError } from './errors.js'
import { errorBody, presentable } from './openai/error-body.js'

export interface BoundServer {
  readonly server: Server
  readonly port: number
  /** For humans: 0.0.0.0 and :: become localhost. */
  readonly url: string
}

type Fetch = (request: Request, env: NodeBindings) => Response | Promise<Response>

/** @throws ConfigError when the port is taken or the address is not ours */
export async function bind(
  fetch: Fetch,
  { host, port, maxConnections }: Pick<ServerFlags, 'host' | 'port' | 'maxConnections'>,
): Promise<BoundServer> {
  const listener = getRequestListener((request, env) => fetch(request, env as NodeBindings), {
    hostname: 'localhost',
    errorHandler: malformed,
  })
  const server = createServer(
    { keepAliveTimeout: 65_000, headersTimeout: 60_000, requestTimeout: 300_000 },
    (incoming, outgoing) => {
      void listener(incoming, outgoing)
    },
  )
  let open = 0
  server.on('connection', (socket: Socket) => {
    if (++open > maxConnections) socket.end(full(maxConnections))
    socket.once('close', () => open--)
  })
  server.on('clientError', (_error, socket) => {
    if (socket.writable) socket.end('HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n')
  })
  await new Promise<void>((resolve, reject) => {
    server.once('error', (error: NodeJS.ErrnoException) => {
      reject(
        error.code === 'EADDRINUSE'
          ? new ConfigError('SY_CONFIG_PORT_IN_USE', { host, port })
          : new ConfigError('SY_CONFIG_CANNOT_LISTEN', { host, port, reason: error.message }, { cause: error }),
      )
    })
    server.listen(port, host, resolve)
  })
  server.removeAllListeners('error')
  const address = server.address() as AddressInfo
  const name = host === '0.0.0.0' || host === '::' ? 'localhost' : address.family === 'IPv6' ? `[${host}]` : host
  return { server, port: address.port, url: `http://${name}:${address.port}` }
}

/** The whole answer to a connection too many: it is closed before a request is read. */
function full(limit: number): string {
  const body = JSON.stringify(errorBody(new HttpError('SY_HTTP_TOO_MANY_CONNECTIONS', { limit })))
  return `HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 5\r\nContent-Type: application/json\r\nContent-Length: ${Buffer.byteLength(body)}\r\n\r\n${body}`
}

/** What the HTTP layer itself could not read, such as a bad Host header. */
function malformed(error: unknown): Response {
  const problem = error instanceof Error ? error.message.slice(0, 200) : 'unreadable'
  const shown = presentable(new HttpError('SY_HTTP_MALFORMED', { problem }), '')
  return Response.json(errorBody(shown), { status: shown.status })
}
