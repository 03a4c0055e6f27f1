// Routes, statuses, stream bytes and the life of the server, over a real socket.
import { connect } from 'node:net'
import { createParser, type EventSourceMessage } from 'eventsource-parser'
import { describe, expect, it } from 'vitest'
import { byteTokenizer } from '../../test/echo-engine.js'
import { serveEcho, until } from '../../test/serve-echo.js'
import { serveEngine } from '../../test/serving/serve-engine.js'
import { ConfigError } from '../config/config-errors.js'
import { serverFlags } from '../config/flags.js'
import { NullEngine } from '../engine/null-engine.js'
import { createLogger, openServer } from './index.js'

interface ErrorAnswer {
  readonly error: {
    readonly message: string
    readonly type: string
    readonly param: string | null
    readonly code: string
  }
}
const errorOf = async (response: Response): Promise<ErrorAnswer['error']> =>
  ((await response.json()) as ErrorAnswer).error

/** Every event and comment of a stream, in order. */
async function readEvents(response: Response): Promise<string[]> {
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

describe('stream bytes', () => {
  it('follow the rules that clients break on', async () => {
    await using echo = await serveEcho()
    const response = await echo.post('/v1/chat/completions', {
      messages: [{ role: 'user', content: '€' }],
      max_tokens: 9,
      stream: true,
      stream_options: { include_usage: true },
    })
    expect(response.headers.get('content-type')).toContain('text/event-stream')
    const events = await readEvents(response)
    expect(events.at(-1)).toBe('[DONE]')
    const chunks = events.slice(0, -1).map(e => JSON.parse(e))
    expect(new Set(chunks.map(c => c.id)).size).toBe(1)
    expect(new Set(chunks.map(c => c.created)).size).toBe(1)
    expect(chunks[0].choices[0].delta).toEqual({ role: 'assistant', content: '' })
    const withChoices = chunks.filter(c => c.choices.length > 0)
    expect(withChoices.every(c => 'finish_reason' in c.choices[0] && c.usage === null)).toBe(true)
    expect(withChoices.filter(c => c.choices[0].finish_reason !== null)).toEqual([withChoices.at(-1)])
    expect(chunks.at(-1)).toMatchObject({ choices: [], usage: { prompt_tokens: 21, completion_tokens: 9 } })
    expect(withChoices.map(c => c.choices[0].delta.content ?? '').join('')).toBe('user: €')
  })

  it('hold no usage unless it was asked for, and end with an error event when the engine breaks', async () => {
    await using echo = await serveEcho()
    const good = await readEvents(await echo.post('/v1/completions', { prompt: 'ab', max_tokens: 3, stream: true }))
    expect(good.some(e => e.includes('usage'))).toBe(false)
    const bad = await readEvents(await echo.post('/v1/completions', { prompt: 'FAIL', max_tokens: 9, stream: true }))
    expect(JSON.parse(bad.at(-1)!)).toMatchObject({
      error: { code: 'SY_ECHO_BROKE', type: 'server_error', param: null },
    })
    expect(bad).not.toContain('[DONE]')
  })

  it('ping while nothing comes', async () => {
    await using echo = await serveEcho({}, { stepMs: 250, pingMs: 30 })
    const events = await readEvents(await echo.post('/v1/completions', { prompt: 'ab', max_tokens: 4, stream: true }))
    expect(events.filter(e => e === ':ping').length).toBeGreaterThan(0)
    expect(events.at(-1)).toBe('[DONE]')
  })

  it('carry token ids when asked, also without a tokenizer', async () => {
    await using echo = await serveEcho({}, { tokenizer: null })
    const events = await readEvents(
      await echo.post('/v1/completions', { prompt: [1, 2], max_tokens: 3, stream: true, return_token_ids: true }),
    )
    const ids = events.slice(0, -1).flatMap(e => JSON.parse(e).choices[0].token_ids ?? [])
    expect(ids).toEqual([1, 2, 1])
  })
})

describe('requests', () => {
  it('pass sampling on, with defaults of the model where the body is silent', async () => {
    await using echo = await serveEcho(
      {},
      { info: { generation_defaults: { temperature: 0.8, topP: 0.95, topK: 20 } } },
    )
    await echo.post('/v1/completions', { prompt: 'a', max_tokens: 1 })
    expect(echo.engine.requests.at(-1)!.sampling).toMatchObject({
      temperature: 0.8,
      topP: 0.95,
      topK: 20,
      minP: 0,
      seed: null,
      stop: [],
    })
    await echo.post('/v1/completions', {
      prompt: 'a',
      max_tokens: 1,
      temperature: 0,
      top_p: 1,
      top_k: -1,
      min_p: 0.1,
      seed: -1,
      stop: 'x',
      stop_token_ids: [5],
      ignore_eos: true,
    })
    expect(echo.engine.requests.at(-1)!.sampling).toEqual({
      temperature: 0,
      topP: 1,
      topK: 0,
      minP: 0.1,
      seed: 2n ** 64n - 1n,
      maxTokens: 1,
      stop: ['x'],
      stopTokenIds: [5],
      ignoreEos: true,
    })
  })

  it('treat null as absent and name the fields they ignore', async () => {
    await using echo = await serveEcho()
    const response = await echo.post('/v1/completions', {
      model: null,
      prompt: 'ab',
      max_tokens: null,
      temperature: null,
      logprobs: null,
      stop: null,
      stream: null,
      tea: 1,
      'bad\nname': 2,
      user: 'me',
    })
    expect(response.status).toBe(200)
    expect(response.headers.get('x-ignored-fields')).toBe('tea, bad?name')
    expect(echo.engine.requests.at(-1)!.sampling.maxTokens).toBe(16)
  })

  it.each([
    ['/v1/completions', { prompt: 'a', n: 0 }, 'n'],
    ['/v1/completions', { prompt: 'a', echo: 'yes' }, 'echo'],
    ['/v1/completions', { prompt: 'a', suffix: 'z' }, 'suffix'],
    ['/v1/completions', { prompt: 'a', logprobs: 6 }, 'logprobs'],
    ['/v1/completions', { prompt: 'a', best_of: 3 }, 'best_of'],
    ['/v1/completions', { prompt: 'a', logit_bias: { 5000: 1 } }, 'logit_bias'],
    ['/v1/completions', { prompt: 'a', presence_penalty: 2.5 }, 'presence_penalty'],
    ['/v1/completions', { prompt: 'a', logit_bias: { x: 1 } }, 'logit_bias.x'],
    ['/v1/completions', { prompt: 'a', repetition_penalty: 0 }, 'repetition_penalty'],
    ['/v1/completions', { prompt: 'a', min_tokens: 9, max_tokens: 8 }, 'min_tokens'],
    ['/v1/completions', { prompt: 'a', prompt_logprobs: 1 }, 'prompt_logprobs'],
    ['/v1/chat/completions', { messages: [{ role: 'user', content: 'x' }], top_logprobs: 2 }, 'top_logprobs'],
    [
      '/v1/chat/completions',
      { messages: [{ role: 'user', content: 'x' }], logprobs: true, top_logprobs: 21 },
      'top_logprobs',
    ],
    ['/generate', {}, 'text'],
    ['/generate', { text: 'a', input_ids: [5] }, 'input_ids'],
    ['/generate', { input_ids: [9999] }, 'input_ids[0]'],
    ['/generate', { text: ['a', 'b'], rid: ['x'] }, 'rid'],
    ['/generate', { text: 'a', sampling_params: { top_p: 0 } }, 'sampling_params.top_p'],
    ['/generate', { text: 'a', sampling_params: { regex: 'a+' } }, 'sampling_params.regex'],
    ['/generate', { text: 'a', image_data: 'x' }, 'image_data'],
    ['/v1/completions', { prompt: 'a', top_p: 0 }, 'top_p'],
    ['/v1/completions', { prompt: 'a', temperature: 'hot' }, 'temperature'],
    ['/v1/completions', { prompt: 'a', max_tokens: 0 }, 'max_tokens'],
    ['/v1/completions', { prompt: 'a', max_tokens: 1.5 }, 'max_tokens'],
    ['/v1/completions', { prompt: 'a', stop: Array(17).fill('x') }, 'stop'],
    ['/v1/completions', {}, 'prompt'],
    ['/v1/completions', { prompt: [] }, 'prompt'],
    ['/v1/completions', { prompt: [1, 99_999] }, 'prompt[1]'],
    ['/v1/completions', { prompt: ['a', 5] }, 'prompt[1]'],
    ['/v1/completions', { prompt: [[1], []] }, 'prompt[1]'],
    ['/v1/completions', { prompt: 'a', model: 7 }, 'model'],
    ['/v1/chat/completions', {}, 'messages'],
    ['/v1/chat/completions', { messages: [] }, 'messages'],
    ['/v1/chat/completions', { messages: 'hi' }, 'messages'],
    ['/v1/chat/completions', { messages: [{ role: 'user' }] }, 'messages[0].content'],
    [
      '/v1/chat/completions',
      { messages: [{ role: 'user', content: [{ type: 'image_url' }] }] },
      'messages[0].content[0].type',
    ],
    ['/v1/chat/completions', { messages: [{ role: 'user', content: 'x' }], tools: [{}] }, 'tools'],
    [
      '/v1/chat/completions',
      { messages: [{ role: 'user', content: 'x' }], response_format: { type: 'json_object' } },
      'response_format',
    ],
    [
      '/v1/chat/completions',
      { messages: [{ role: 'assistant', content: null, tool_calls: [{}] }] },
      'messages[0].tool_calls',
    ],
  ])('%s refuses %j and names %s', async (path, body, param) => {
    await using echo = await serveEcho()
    const response = await echo.post(path, body)
    expect(response.status).toBe(400)
    expect(await errorOf(response)).toMatchObject({ param, type: 'invalid_request_error' })
    expect(echo.engine.requests).toEqual([])
    expect(echo.server.inFlight).toBe(0)
  })

  it('let values that ask for nothing pass', async () => {
    await using echo = await serveEcho()
    const body = {
      n: 1,
      best_of: 1,
      logprobs: false,
      logit_bias: {},
      presence_penalty: 0,
      response_format: { type: 'text' },
      tools: [],
      tool_choice: 'none',
    }
    expect(
      (await echo.post('/v1/chat/completions', { ...body, messages: [{ role: 'user', content: 'x' }], max_tokens: 1 }))
        .status,
    ).toBe(200)
  })

  it('say with numbers when prompt and output exceed the context', async () => {
    await using echo = await serveEcho({}, { contextLength: 20 })
    const tooMuch = await errorOf(await echo.post('/v1/completions', { prompt: 'abcd', max_tokens: 16 }))
    expect(tooMuch).toMatchObject({ code: 'context_length_exceeded', param: 'max_tokens' })
    expect(tooMuch.message).toMatch(/20 tokens.*needs 21.*5 of the prompt.*16 of the output/)
    expect((await echo.post('/v1/completions', { prompt: 'abcd', max_tokens: 15 })).status).toBe(200)
    expect(await errorOf(await echo.post('/v1/completions', { prompt: 'x'.repeat(20) }))).toMatchObject({
      param: 'prompt',
    })
  })

  it('need a tokenizer for text', async () => {
    await using echo = await serveEcho({}, { tokenizer: null })
    expect(await errorOf(await echo.post('/v1/completions', { prompt: 'a' }))).toMatchObject({
      code: 'SY_HTTP_NO_TOKENIZER',
    })
    const chat = await echo.post('/v1/chat/completions', { messages: [{ role: 'user', content: 'x' }] })
    expect(await errorOf(chat)).toMatchObject({ code: 'SY_HTTP_NO_TOKENIZER', param: 'messages' })
    await using mute = await serveEcho({}, { tokenizer: { ...byteTokenizer, hasChatTemplate: false } })
    const none = await mute.post('/v1/chat/completions', { messages: [{ role: 'user', content: 'x' }] })
    expect(await errorOf(none)).toMatchObject({ code: 'SY_HTTP_NO_CHAT_TEMPLATE' })
  })
})

describe('routes', () => {
  it('answer wrong paths, methods, types and bodies with their statuses', async () => {
    await using echo = await serveEcho({ maxBodyBytes: 1024 })
    const { url } = echo.server
    const wrongPath = await fetch(`${url}/v1/nothing`)
    expect([wrongPath.status, (await errorOf(wrongPath)).code]).toEqual([404, 'SY_HTTP_UNKNOWN_PATH'])
    const wrongMethod = await fetch(`${url}/v1/completions`)
    expect([wrongMethod.status, wrongMethod.headers.get('allow')]).toEqual([405, 'POST'])
    expect((await fetch(`${url}/health`, { method: 'DELETE' })).headers.get('allow')).toBe('GET, HEAD')
    expect((await echo.post('/v1/completions', 'prompt=a', { 'content-type': 'text/plain' })).status).toBe(415)
    expect((await echo.post('/v1/completions', { prompt: 'x'.repeat(2000) })).status).toBe(413)
    const endless = new ReadableStream<Uint8Array>({
      pull: controller => controller.enqueue(new Uint8Array(600).fill(32)),
    })
    const chunked = fetch(`${url}/v1/completions`, {
      method: 'POST',
      body: endless,
      duplex: 'half',
      headers: { 'content-type': 'application/json' },
    } as RequestInit)
    // The answer comes while the body is still being sent; a client may see the closed connection first.
    await chunked.then(r => expect(r.status).toBe(413)).catch((e: unknown) => expect(String(e)).toMatch(/fetch failed/))
    for (const body of ['', '{', '[]', 'null', '"x"', '{"prompt": "\ud800"']) {
      const response = await echo.post('/v1/completions', body)
      expect([response.status, (await errorOf(response)).code]).toEqual([400, 'SY_HTTP_NOT_JSON'])
    }
    const headers = { 'content-type': 'application/json' }
    const send = (body: Buffer) =>
      fetch(`${url}/v1/completions`, { method: 'POST', headers, body: new Uint8Array(body) })
    const marked = await send(Buffer.from('\ufeff{"prompt": "a"}'))
    expect(marked.status).toBe(200)
    const latin1 = await send(Buffer.from('{"prompt": "caf\xe9"}', 'latin1'))
    expect([latin1.status, (await errorOf(latin1)).message]).toEqual([400, expect.stringContaining('not UTF-8')])
  })

  it('give every answer a request id, the caller’s when it sends one', async () => {
    await using echo = await serveEcho()
    expect((await fetch(`${echo.server.url}/health`)).headers.get('x-request-id')).toMatch(/^[\w-]{36}$/)
    const own = await fetch(`${echo.server.url}/nope`, { headers: { 'x-request-id': 'my-1' } })
    expect(own.headers.get('x-request-id')).toBe('my-1')
  })

  it('tell about the server without the key', async () => {
    await using echo = await serveEcho({ apiKey: 'topsecret' }, { info: { modelPath: '/m', seed: 3n } })
    const headers = { authorization: 'Bearer topsecret' }
    expect((await fetch(`${echo.server.url}/server_info`)).status).toBe(401)
    const info = await (await fetch(`${echo.server.url}/server_info`, { headers })).text()
    expect(info).not.toContain('topsecret')
    expect(JSON.parse(info)).toMatchObject({ status: 'ready', engine: { seed: '3' }, internal_states: [{ dpRank: 0 }] })
    const model = await (await fetch(`${echo.server.url}/get_model_info`, { headers })).json()
    expect(model).toMatchObject({ model_path: '/m', served_model_name: 'echo', is_generation: true })
    expect((await fetch(`${echo.server.url}/health_generate`, { headers })).status).toBe(200)
    expect((await fetch(`${echo.server.url}/health`)).status).toBe(200)
    const page = await fetch(`${echo.server.url}/`)
    expect([page.status, page.headers.get('content-type')]).toEqual([200, 'text/html; charset=utf-8'])
  })

  it('answer malformed HTTP without falling over', async () => {
    await using echo = await serveEcho()
    const send = (raw: string) =>
      new Promise<string>(resolve => {
        let answer = ''
        const socket = connect(echo.server.port, '127.0.0.1', () => socket.end(raw))
        socket.on('data', data => {
          answer += data.toString()
        })
        socket.on('close', () => resolve(answer))
        socket.on('error', () => resolve(answer))
      })
    expect(await send('NONSENSE\r\n\r\n')).toMatch(/^HTTP\/1.1 400/)
    expect(await send('GET /%zz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n')).toMatch(/^HTTP\/1.1 404/)
    expect(await send('GET / HTTP/1.1\r\nHost: a b\r\nConnection: close\r\n\r\n')).toMatch(/^HTTP\/1.1 400/)
    expect((await fetch(`${echo.server.url}/health`)).status).toBe(200)
  })
})

describe('life of the server', () => {
  const silent = { log: createLogger('silent'), version: '0.0.0' }

  it('finds a taken port before anything else, and says what to do', async () => {
    await using echo = await serveEcho()
    const again = openServer(serverFlags({ port: echo.server.port }), silent)
    await expect(again).rejects.toBeInstanceOf(ConfigError)
    await expect(again).rejects.toMatchObject({
      code: 'SY_CONFIG_PORT_IN_USE',
      remedy: expect.stringContaining('--port'),
    })
    await expect(openServer(serverFlags({ host: '203.0.113.7', port: 0 }), silent)).rejects.toMatchObject({
      code: 'SY_CONFIG_CANNOT_LISTEN',
    })
  })

  it('answers 503 while loading', async () => {
    const server = await openServer(serverFlags({ port: 0 }), silent)
    const health = await fetch(`${server.url}/health`)
    expect([health.status, await health.json()]).toEqual([503, { status: 'loading' }])
    const models = await fetch(`${server.url}/v1/models`)
    expect([models.status, (await errorOf(models)).code, models.headers.get('retry-after')]).toEqual([
      503,
      'SY_HTTP_LOADING',
      '5',
    ])
    await server.close()
  })

  it('refuses requests beyond the queue', async () => {
    const engine = new NullEngine({ stepMs: 20, maxRunningRequests: 1 })
    await using served = await serveEngine(engine, { maxQueuedRequests: 2 })
    const ask = () => served.post('/v1/completions', { prompt: 'abc', max_tokens: 20 })
    const taken = [ask()]
    await until(() => engine.state()[0]!.running === 1, 'one runs')
    taken.push(ask(), ask())
    await until(() => served.server.inFlight === 3, 'two wait')
    const refused = await ask()
    expect([refused.status, refused.headers.get('retry-after')]).toEqual([503, '5'])
    expect((await errorOf(refused)).code).toBe('SY_HTTP_QUEUE_FULL')
    expect((await Promise.all(taken)).map(r => r.status)).toEqual([200, 200, 200])
  })

  it('lets running requests finish in a drain and refuses new ones', async () => {
    await using echo = await serveEcho({}, { stepMs: 20 })
    const running = echo.post('/v1/completions', { prompt: 'abc', max_tokens: 10, stream: true }).then(readEvents)
    await until(() => echo.server.inFlight === 1, 'it runs')
    const drained = echo.server.drain(10_000)
    expect((await fetch(`${echo.server.url}/health`)).status).toBe(503)
    expect(await errorOf(await echo.post('/v1/completions', { prompt: 'a' }))).toMatchObject({
      code: 'SY_HTTP_DRAINING',
    })
    expect((await running).at(-1)).toBe('[DONE]')
    expect(await drained).toBe(0)
  })

  it('aborts what is left when the drain is over', async () => {
    await using echo = await serveEcho({}, { stepMs: 50 })
    const begun = await echo.post('/v1/completions', { prompt: 'abc', max_tokens: 200, stream: true })
    const stream = readEvents(begun)
    const whole = echo.post('/v1/completions', { prompt: 'abc', max_tokens: 200 })
    await until(() => echo.server.inFlight === 2, 'both run')
    expect(await echo.server.drain(20)).toBe(2)
    expect(JSON.parse((await stream).at(-1)!)).toMatchObject({ error: { code: 'SY_HTTP_ABORTED' } })
    const answer = await whole
    expect([answer.status, (await errorOf(answer)).code]).toEqual([503, 'SY_HTTP_ABORTED'])
    await until(() => echo.engine.state()[0]!.running === 0, 'the engine stopped')
  })

  it('tells everyone when the engine dies', async () => {
    await using echo = await serveEcho({}, { stepMs: 50 })
    const begun = await echo.post('/v1/completions', { prompt: 'abc', max_tokens: 200, stream: true })
    const stream = readEvents(begun)
    const whole = echo.post('/v1/completions', { prompt: 'abc', max_tokens: 200 })
    await until(() => echo.server.inFlight === 2, 'both run')
    echo.engine.die(new Error('rank 0 went up in smoke'))
    expect(JSON.parse((await stream).at(-1)!).error.message).toContain('rank 0 went up in smoke')
    expect((await whole).status).toBe(503)
    const health = await fetch(`${echo.server.url}/health`)
    expect([health.status, await health.json()]).toEqual([503, { status: 'failed' }])
    expect(await errorOf(await echo.post('/v1/completions', { prompt: 'a' }))).toMatchObject({
      code: 'SY_HTTP_ENGINE_FAILED',
    })
  })
})
