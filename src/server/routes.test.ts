// Paths, methods, statuses and headers, over a real socket.
import { connect } from 'node:net'
import { describe, expect, it } from 'vitest'
import { errorOf } from '../../test/http-answers.js'
import { serveEcho } from '../../test/serve-echo.js'
import { serveEngine } from '../../test/serving/serve-engine.js'
import { NullEngine } from '../engine/null-engine.js'

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
    for (const encoding of ['gzip', 'deflate, br']) {
      const zipped = await echo.post('/v1/completions', { prompt: 'a' }, { 'content-encoding': encoding })
      expect([zipped.status, zipped.headers.get('accept-encoding')]).toEqual([415, 'identity'])
      const { code, message } = await errorOf(zipped)
      expect(code).toBe('SY_HTTP_CONTENT_ENCODING')
      expect(message).toContain(encoding)
      expect(message).toContain('without the header Content-Encoding')
    }
    const plain = await echo.post('/v1/completions', { prompt: 'a' }, { 'content-encoding': 'identity' })
    expect(plain.status).toBe(200)
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

  it('name the range of ranks to who asks for the loads of another', async () => {
    await using echo = await serveEcho()
    await using two = await serveEngine(new NullEngine({ dpRanks: 2 }))
    const refused = async (url: string, rank: string) => {
      const response = await fetch(`${url}/v1/loads?dp_rank=${rank}`)
      const { param, message } = await errorOf(response)
      expect([response.status, param]).toEqual([400, 'dp_rank'])
      return message
    }
    expect(await refused(two.url, '9')).toMatch(/^dp_rank in the address is 9, but must be from 0 to 1\./)
    expect(await refused(two.url, 'x')).toContain('from 0 to 1')
    expect(await refused(echo.server.url, '1')).toContain('must be 0: there is one')
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
