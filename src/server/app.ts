// The routes. Every answer goes through one place that gives it a request id, a log line and, when something was thrown,
// an OpenAI-shaped error.
import { randomUUID } from 'node:crypto'
import { RESPONSE_ALREADY_SENT } from '@hono/node-server/utils/response'
import { type Context, Hono } from 'hono'
import type { SwitchyardError } from '../config/errors.js'
import type { ServerFlags } from '../config/flags.js'
import { keyCheck } from './auth.js'
import { readJsonObject } from './body.js'
import type { NodeBindings, RequestContext } from './context.js'
import { HttpError } from './errors.js'
import type { Lifecycle, Ticket } from './lifecycle.js'
import type { Logger } from './log.js'
import { abortRequest, continueGeneration, flushCache, pauseGeneration } from './native/control.js'
import { generate } from './native/generate.js'
import { parseGenerate } from './native/generate-schema.js'
import { health, healthGenerate, modelInfo, serverInfo } from './native/info.js'
import { loads } from './native/loads.js'
import { detokenize, tokenize } from './native/tokenize.js'
import { chatCompletions } from './openai/chat.js'
import { completions } from './openai/completions.js'
import { errorBody, presentable } from './openai/error-body.js'
import { checkModel, listModels, oneModel } from './openai/models.js'
import { parseBody } from './openai/schema.js'
import { page } from './page.js'
import { startSse } from './sse.js'

export interface AppOptions {
  readonly lifecycle: Lifecycle
  readonly flags: ServerFlags
  readonly log: Logger
  readonly version: string
  /** Milliseconds of silence before a stream sends a comment. */
  readonly pingMs: number
}

type Env = { Bindings: NodeBindings }
type Handler = (context: RequestContext, c: Context<Env>) => Response | Promise<Response>

export function createApp(options: AppOptions): Hono<Env> {
  const { lifecycle, flags, log } = options
  const app = new Hono<Env>({ strict: false })
  const { metrics } = lifecycle
  const started = Math.floor(Date.now() / 1000)
  const checkKey = keyCheck(flags.apiKey)

  const answer = async (c: Context<Env>, route: string, handler: Handler): Promise<Response> => {
    const begin = performance.now()
    const { path, method } = c.req
    const requestId = c.req.header('x-request-id')?.match(/^[\w.-]{1,128}$/)?.[0] ?? randomUUID()
    const notes: Record<string, unknown> = {}
    let status = 0
    let held = false
    const writeLog = () => {
      const fields = { request_id: requestId, status, ms: Math.round(performance.now() - begin), ...notes }
      log[QUIET.has(path) ? 'debug' : 'info'](fields, `${method} ${path.slice(0, 200)}`)
      metrics.http(method, route, status)
    }
    const context: RequestContext = {
      requestId,
      pingMs: options.pingMs,
      stallMs: 1000 * flags.streamStallTimeout,
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
    return startSse(response, c.env.outgoing) ? RESPONSE_ALREADY_SENT : response
  }

  /** One path, its methods, and 405 for all others. */
  const route = (path: string, methods: Readonly<Record<string, Handler>>, open = false): void => {
    const allowed = Object.keys(methods).flatMap(method => (method === 'GET' ? ['GET', 'HEAD'] : [method]))
    app.all(path, c =>
      answer(c, path, (context, same) => {
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
  route('/v1/completions', { POST: generation(openai('completion'), completions) })
  route('/v1/chat/completions', { POST: generation(openai('chat'), chatCompletions) })
  const native = generation(parseGenerate, generate)
  route('/generate', { POST: native, PUT: native })
  for (const prefix of ['', '/v1']) {
    route(`${prefix}/tokenize`, { POST: posted(body => tokenize(lifecycle.engine, body)) })
    route(`${prefix}/detokenize`, { POST: posted(body => detokenize(lifecycle.engine, body)) })
  }
  route('/v1/loads', { GET: (_, c) => loads(lifecycle.engine, metrics, options.version, c.req.query('dp_rank')) })
  const flush = () => flushCache(lifecycle.engine)
  route('/flush_cache', { GET: flush, POST: flush })
  route('/abort_request', { POST: posted(body => abortRequest(lifecycle.engine, body)) })
  route('/pause_generation', { POST: () => pauseGeneration(lifecycle.engine) })
  route('/continue_generation', { POST: () => continueGeneration(lifecycle.engine) })
  route(
    '/metrics',
    {
      GET: async () => new Response(await metrics.text(), { headers: { 'content-type': metrics.contentType } }),
    },
    true,
  )
  app.notFound(c =>
    answer(c, 'unknown', () => {
      throw new HttpError('SY_HTTP_UNKNOWN_PATH', { path: c.req.path.slice(0, 200) })
    }),
  )
  return app

  /** A ticket that the client's leaving aborts at once. */
  function begin(c: Context<Env>): Ticket {
    const ticket = lifecycle.begin()
    const { outgoing } = c.env
    const leave = () => {
      if (!outgoing.writableFinished) ticket.abort(new HttpError('SY_HTTP_CLIENT_GONE'))
    }
    if (outgoing.destroyed) leave()
    else outgoing.once('close', leave)
    return ticket
  }

  /** A POST that runs the engine: the body is read and checked before a ticket is taken. */
  function generation<B>(
    parse: (raw: Record<string, unknown>) => { readonly body: B; readonly ignored: readonly string[] },
    run: (context: RequestContext, ticket: Ticket, body: B) => Promise<Response>,
  ): Handler {
    return async (context, c) => {
      const { body, ignored } = parse(await readJsonObject(c.env.incoming, flags.maxBodyBytes))
      const ticket = begin(c)
      let response: Response
      try {
        response = await run(context, ticket, body)
      } catch (error) {
        ticket.end()
        throw error
      }
      if (ignored.length > 0) response.headers.set('x-ignored-fields', ignored.map(headerSafe).join(', ').slice(0, 500))
      return response
    }
  }

  /** Parses an OpenAI body and checks the model it names. */
  function openai<K extends 'completion' | 'chat'>(kind: K) {
    return (raw: Record<string, unknown>) => {
      const parsed = parseBody(kind, raw)
      checkModel(lifecycle.engine, parsed.body.model)
      return parsed
    }
  }

  /** A POST whose body is taken as it is. */
  function posted(run: (body: Record<string, unknown>) => Response | Promise<Response>): Handler {
    return async (_, c) => run(await readJsonObject(c.env.incoming, flags.maxBodyBytes))
  }
}

/** Asked every few seconds by machines: not worth a line. */
const QUIET: ReadonlySet<string> = new Set(['/health', '/metrics'])

const headerSafe = (name: string): string => name.slice(0, 60).replace(/[^\w.-]/g, '?')

function errorHeaders({ status, code, fields }: SwitchyardError): Record<string, string> {
  if (code === 'SY_HTTP_CONTENT_ENCODING') return { 'accept-encoding': 'identity' }
  if (status === 405) return { allow: String(fields['allow'] ?? '') }
  if (status === 503) return { 'retry-after': '5' }
  if (status === 401) return { 'www-authenticate': 'Bearer' }
  return {}
}
