// Clients that stop reading, and clients that vanish, over a real socket and an engine that never waits: what they leave
// unread is bounded, their requests end, and nobody else notices.
import { connect, type Socket } from 'node:net'
import { describe, expect, it } from 'vitest'
import { until } from '../../test/serve-echo.js'
import { type ServedEngine, serveEngine } from '../../test/serving/serve-engine.js'
import { NullEngine } from '../engine/null-engine.js'

/** Asks for a long stream and then reads nothing. */
async function stalled({ server }: ServedEngine<NullEngine>, tokens: number): Promise<Socket> {
  const body = JSON.stringify({ prompt: 'x', max_tokens: tokens, stream: true })
  const socket = connect(server.port, '127.0.0.1')
  socket.on('error', () => {})
  socket.pause()
  await new Promise<void>(resolve => socket.once('connect', resolve))
  socket.write(
    `POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: ${body.length}\r\n\r\n${body}`,
  )
  return socket
}

const running = (served: ServedEngine<NullEngine>) => served.engine.state()[0]!.running

describe('a client that reads nothing', () => {
  it('loses its request when too much waits, with the reason as its last event', async () => {
    await using served = await serveEngine(new NullEngine(), { maxStreamBacklog: 64 })
    const socket = await stalled(served, 500_000)
    await until(() => served.server.inFlight === 1, 'it runs')
    await until(() => running(served) === 0, 'the engine stopped')
    let text = ''
    socket.setEncoding('utf8').on('data', (piece: string) => {
      text += piece
    })
    socket.resume()
    await until(() => text.endsWith('0\r\n\r\n'), 'the stream ended')
    expect(text).toContain('"code":"SY_HTTP_SLOW_READER"')
    expect(text).not.toContain('[DONE]')
    await until(() => served.server.inFlight === 0, 'the ticket is back')
    socket.destroy()
  }, 60_000)

  it('loses its connection when it stands still for too long', async () => {
    await using served = await serveEngine(new NullEngine(), { streamStallTimeout: 0.2, maxStreamBacklog: 1 << 20 })
    const socket = await stalled(served, 300_000)
    const closed = new Promise<void>(resolve => socket.once('close', () => resolve()))
    await until(() => served.server.inFlight === 1, 'it runs')
    await until(() => served.server.inFlight === 0, 'the ticket is back')
    await until(() => running(served) === 0, 'the engine stopped')
    socket.resume()
    await closed
  }, 60_000)

  it('delays nobody', async () => {
    await using served = await serveEngine(new NullEngine({ stepMs: 1 }))
    const sockets = await Promise.all(Array.from({ length: 20 }, () => stalled(served, 100_000)))
    await until(() => running(served) === 20, 'they run')
    const answer = await served.json<{ choices: { text: string }[] }>('/v1/completions', { prompt: 'x', max_tokens: 3 })
    expect(answer.choices[0]!.text).toBe('the yard takes ')
    for (const socket of sockets) socket.destroy()
    await until(() => running(served) === 0, 'all are gone')
    await until(() => served.server.inFlight === 0, 'all tickets are back')
  })
})

describe('clients that vanish', () => {
  it('in the middle of a body, of a wait and of a stream leave nothing behind', async () => {
    await using served = await serveEngine(new NullEngine({ stepMs: 5 }))
    const { port } = served.server
    const half = connect(port, '127.0.0.1')
    half.on('error', () => {})
    half.write(
      'POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"pro',
    )
    const streams = await Promise.all(Array.from({ length: 5 }, () => stalled(served, 10_000)))
    await until(() => running(served) === 5, 'they run')
    half.destroy()
    for (const socket of streams) socket.resetAndDestroy()
    await until(() => running(served) === 0 && served.server.inFlight === 0, 'all are gone')
    expect((await fetch(`${served.url}/health`)).status).toBe(200)
  })
})

describe('connections', () => {
  it('beyond the limit are answered 503 and closed', async () => {
    await using served = await serveEngine(new NullEngine(), { maxConnections: 2 })
    const held = [connect(served.server.port, '127.0.0.1'), connect(served.server.port, '127.0.0.1')]
    await Promise.all(held.map(s => new Promise(resolve => s.once('connect', resolve))))
    const answer = await new Promise<string>(resolve => {
      let text = ''
      const socket = connect(served.server.port, '127.0.0.1')
      socket.on('data', data => {
        text += data.toString()
      })
      socket.on('close', () => resolve(text))
      socket.on('error', () => {})
    })
    expect(answer).toMatch(/^HTTP\/1.1 503/)
    expect(answer).toContain('SY_HTTP_TOO_MANY_CONNECTIONS')
    for (const socket of held) socket.destroy()
  })
})
