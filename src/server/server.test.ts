// The life of the server: binding, loading, a full queue, drains, a dead engine.
import { describe, expect, it } from 'vitest'
import { errorOf, readEvents } from '../../test/http-answers.js'
import { serveEcho, until } from '../../test/serve-echo.js'
import { serveEngine } from '../../test/serving/serve-engine.js'
import { ConfigError } from '../config/config-errors.js'
import { serverFlags } from '../config/flags.js'
import { NullEngine } from '../engine/null-engine.js'
import { createLogger, openServer } from './index.js'

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
