// The life of `switchyard serve` around an engine: announce, drain at the first signal, abort at the second, exit codes.
import { describe, expect, it } from 'vitest'
import { type CapturedIo, captureIo } from '../../test/capture-io.js'
import { EchoEngine } from '../../test/echo-engine.js'
import { serveEcho, until } from '../../test/serve-echo.js'
import { engineFlags, serverFlags } from '../config/flags.js'
import { runServer } from './serve.js'

interface Run {
  readonly io: CapturedIo
  readonly engine: EchoEngine
  readonly code: Promise<number>
  readonly url: string
}

async function start(stepMs = 0, flags: Parameters<typeof serverFlags>[0] = {}): Promise<Run> {
  const io = captureIo()
  const engine = new EchoEngine({ stepMs })
  const server = serverFlags({ port: 0, logLevel: 'silent', ...flags })
  const code = runServer(io, engineFlags({ modelPath: 'x' }), server, async (_, hooks) => {
    hooks.onProgress?.({ stage: 'packing weights', done: 1, total: 2 })
    hooks.onNotice?.('slow kernels')
    return engine
  })
  await until(() => io.stdout.includes('Ctrl-C'), 'it announces itself')
  return { io, engine, code, url: /(http:\S+)\/v1/.exec(io.stdout)![1]! }
}

const complete = (url: string, max_tokens: number) =>
  fetch(`${url}/v1/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ prompt: 'abc', max_tokens }),
  })

describe('serve', () => {
  it('announces its URLs on stdout, progress and notices on stderr, and ends with 0 at Ctrl-C', async () => {
    const { io, engine, code, url } = await start()
    expect((await fetch(`${url}/health`)).status).toBe(200)
    expect(io.stdout).toContain('serves echo')
    expect(io.stderr).toContain('packing weights')
    expect(io.stderr).toContain('slow kernels')
    io.signal()
    expect(await code).toBe(0)
    expect(engine.closed).toBe(true)
    await expect(fetch(`${url}/health`)).rejects.toThrow()
  })

  it('finishes running requests first', async () => {
    const { io, engine, code, url } = await start(10)
    const answer = complete(url, 12)
    await until(() => engine.state()[0]!.running === 1, 'it runs')
    io.signal()
    expect((await answer).status).toBe(200)
    expect(await code).toBe(0)
    expect(io.stderr).toContain('finishing 1 request, for up to 30 s')
  })

  it.each([
    ['SIGINT', 130],
    ['SIGTERM', 143],
  ] as const)('aborts them at the second signal; after %s the exit code is %d', async (signal, exit) => {
    const { io, engine, code, url } = await start(30)
    const answer = complete(url, 200)
    await until(() => engine.state()[0]!.running === 1, 'it runs')
    io.signal()
    io.signal(signal)
    expect((await answer).status).toBe(503)
    expect(await code).toBe(exit)
    expect(engine.closed).toBe(true)
  })

  it('aborts them when the time to drain is over', async () => {
    const { io, engine, code, url } = await start(30, { shutdownTimeout: 0.05 })
    const answer = complete(url, 200)
    await until(() => engine.state()[0]!.running === 1, 'it runs')
    io.signal()
    expect((await answer).status).toBe(503)
    expect(await code).toBe(0)
    expect(io.stderr).toContain('aborted 1')
  })

  it('ends with 1 when the engine dies', async () => {
    const { io, engine, code, url } = await start(30)
    const answer = complete(url, 200)
    await until(() => engine.state()[0]!.running === 1, 'it runs')
    engine.die(new Error('rank 0 is gone'))
    expect((await answer).status).toBe(503)
    expect(await code).toBe(1)
    expect(io.stderr).toContain('rank 0 is gone')
  })

  it('does not load a model when the port is taken', async () => {
    await using other = await serveEcho()
    let loaded = false
    const flags = serverFlags({ port: other.server.port, logLevel: 'silent' })
    const running = runServer(captureIo(), engineFlags({ modelPath: 'x' }), flags, async () => {
      loaded = true
      return new EchoEngine()
    })
    await expect(running).rejects.toMatchObject({ code: 'SY_CONFIG_PORT_IN_USE' })
    expect(loaded).toBe(false)
  })

  it.each([
    ['SIGINT', 130],
    ['SIGTERM', 143],
  ] as const)('can be stopped by %s while it loads, with exit code %d', async (signal, exit) => {
    const io = captureIo()
    let finish: (engine: EchoEngine) => void = () => {}
    const engine = new EchoEngine()
    let loading = false
    const code = runServer(io, engineFlags({ modelPath: 'x' }), serverFlags({ port: 0, logLevel: 'silent' }), () => {
      loading = true
      return new Promise(resolve => {
        finish = resolve
      })
    })
    await until(() => loading, 'it loads')
    io.signal(signal)
    expect(await code).toBe(exit)
    finish(engine)
    await until(() => engine.closed, 'the late engine is closed')
  })

  it('passes on what the engine says about a bad model', async () => {
    const failing = runServer(
      captureIo(),
      engineFlags({ modelPath: 'x' }),
      serverFlags({ port: 0, logLevel: 'silent' }),
      () => Promise.reject(new Error('no config.json')),
    )
    await expect(failing).rejects.toThrow('no config.json')
  })
})
