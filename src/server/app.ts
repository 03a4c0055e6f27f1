// The routes. Every answer goes through one place that gives it a request id, a log line and, when something was thrown,
// an OpenAI-shaped error.
import { randomUUID } from 'node:crypto'
import { type Context, Hono } from 'hono'
import type { ServerFlags } from '../config/flags.js'
import { keyCheck } from './auth.js'
import { readJsonObject } from './body.js'
import type { RequestContext } from './context.js'
import { HttpError } from './errors.js'
import type { Lifecycle, Ticket } from './lifecycle.js'
import type { Logger } from './log.js'
import { health, healthGenerate, modelInfo, serverInfo } from './native/info.js'
import { chatCompletions } from './openai/chat.js'
import { completions } from './openai/completions.js'
import { errorBody, presentable } from './openai/error-body.js'
import { checkModel, listModels, oneModel } from './openai/models.js'
import { parseBody } from './openai/schema.js'
import { page } from './page.js'

export interface AppOptions {
  readonly lifecycle: Lifecycle
  readonly flags: ServerFlags
  readonly log: Logger
  readonly version: string
  /** Milliseconds of silence before a stream sends a comment. */
  readonly pingMs: number
}

type Handler = (context: RequestContext, c: Context) => Response | Promise<Response>

export function createApp(options: AppOptions): Hono {
  const { lifecycle, flags, log } = options
  const app = new Hono({ strict: false })
  const started = Math.floor(Date.now() / 1000)
  const checkKey = keyCheck(flags.apiKey)

  const answer = async (c: Context, handler: Handler): Promise<Response> => {
    const begin = performance.now()
    const { path, method } = c.req
    const requestId = c.req.header('x-request-id')?.match(/^[\w.-]{1,128}$/)?.[0] ?? randomUUID()
    const notes: Record<string, unknown> = {}
    let status = 0
    let held = false
    const writeLog = () => {
      const fields = { request_id: requestId, status, ms: Math.round(performance.now() - begin), ...notes }
      log[path === '/health' ? 'debug' : 'info'](fields, `${method} ${path.slice(0, 200)}`)
    }
    const context: RequestContext = {
      requestId,
      pingMs: options.pingMs,
      note: fields => Object.assign(notes, fields),
      fail: error => {
        notes['code'] = error.code
        if (error.status < 500) return
        // A stack says something about bugs only; what happened to a rank is in the message.
        const cause = error.cause === undefined ? {} : { err: error.cause }
        log.error({ request_id: requestId, code: error.code, ...cause }, error.message)
      },
      holdLog: () => {
        held = true
        return writeLog
      },
    }
    let response: Response
    try {
      response = await handler(context, c)
    } catch (thrown) {
      const error = presentable(thrown, requestId)
      context.fail(error)
      response = Response.json(errorBody(error), { status: error.status, headers: errorHeaders(error) })
    }
    status = response.status
    response.headers.set('x-request-id', requestId)
    if (!held) writeLog()
    return response
  }

  /** One path, its methods, and 405 for all others. */
  const route = (path: string, methods: Readonly<Record<string, Handler>>, open = false): void => {
    const allowed = Object.keys(methods).flatMap(method => (method === 'GET' ? ['GET', 'HEAD'] : [method]))
    app.all(path, c =>
      answer(c, (context, same) => {
        const handler = methods[c.req.method === 'HEAD' ? 'GET' : c.req.method]
        if (handler === undefined) {
          throw new HttpError('SY_HTTP_WRONG_METHOD', {
            path,
            method: c.req.method.slice(0, 20),
            allowed: allowed.join(' or '),
            allow: allowed.join(', '),
          })
        }
        if (!open) checkKey(c.req.header('authorization'))
        return handler(context, same)
      }),
    )
  }

  route('/', { GET: page }, true)
  route('/health', { GET: () => health(lifecycle) }, true)
  route('/health_generate', { GET: (_, c) => healthGenerate(begin(c)) })
  route('/server_info', { GET: () => serverInfo(lifecycle, flags, options.version) })
  route('/get_server_info', { GET: () => serverInfo(lifecycle, flags, options.version) })
  route('/get_model_info', { GET: () => modelInfo(lifecycle.engine) })
  route('/v1/models', { GET: () => listModels(lifecycle.engine, started) })
  route('/v1/models/:id{.+}', { GET: (_, c) => oneModel(lifecycle.engine, c.req.param('id') ?? '', started) })
  route('/v1/completions', { POST: generation('completion', completions) })
  route('/v1/chat/completions', { POST: generation('chat', chatCompletions) })
  app.notFound(c =>
    answer(c, () => {
      throw new HttpError('SY_HTTP_UNKNOWN_PATH', { path: c.req.path.slice(0, 200) })
    }),
  )
  return app

  /** A ticket that the client's leaving aborts at once. */
  function begin(c: Context): Ticket {
    const ticket = lifecycle.begin()
    const { signal } = c.req.raw
    const leave = () => ticket.abort(new HttpError('SY_HTTP_CLIENT_GONE'))
    if (signal.aborted) leave()
    else signal.addEventListener('abort', leave, { once: true })
    return ticket
  }

  type Bodies = { completion: Parameters<typeof completions>[2]; chat: Parameters<typeof chatCompletions>[2] }

  function generation<K extends keyof Bodies>(
    kind: K,
    run: (context: RequestContext, ticket: Ticket, body: Bodies[K]) => Promise<Response>,
  ): Handler {
    return async (context, c) => {
      const raw = await readJsonObject(c.req.raw, flags.maxBodyBytes)
      const { body, ignored } = parseBody(kind, raw)
      checkModel(lifecycle.engine, body.model)
      const ticket = begin(c)
      let response: Response
      try {
        response = await run(context, ticket, body as Bodies[K])
      } catch (error) {
        ticket.end()
        throw error
      }
      if (ignored.length > 0) response.headers.set('x-ignored-fields', ignored.map(headerSafe).join(', ').slice(0, 500))
      return response
    }
  }
}

const headerSafe = (name: string): string => name.slice(0, 60).replace(/[^\w.-]/g, '?')

function errorHeaders(error: { status: number; fields: Readonly<Record<string, unknown>> }): Record<string, string> {
  if (error.status === 405) return { allow: String(error.fields['allow'] ?? '') }
  if (error.status === 503) return { 'retry-after': '5' }
  if (error.status === 401) return { 'www-authenticate': 'Bearer' }
  return {}
}
