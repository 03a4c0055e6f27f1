// Load on `switchyard serve` as a process of its own: many streams with random lengths, aborts, slow readers and bad requests. Nothing hangs, no two
// texts mix, no request is lost, memory does not grow, and /health answers throughout.
// A full run (SWITCHYARD_TEST_FULL=1) is 500 streams for 10 minutes on 4 ranks; otherwise 50 for 60 seconds on 2.
// SWITCHYARD_LOAD_SECONDS sets another time.
import { execFileSync } from 'node:child_process'
import { existsSync, readFileSync } from 'node:fs'
import { connect } from 'node:net'
import { Worker } from 'node:worker_threads'
import { describe, expect, it } from 'vitest'
import { CounterRandom, STREAM } from '../../src/runtime/random.js'
import { ServeProcess } from '../serve-process.js'

const FULL = process.env['SWITCHYARD_TEST_FULL'] !== undefined && process.env['SWITCHYARD_TEST_FULL'] !== ''
const STREAMS = FULL ? 500 : 50
const SECONDS = Number(process.env['SWITCHYARD_LOAD_SECONDS'] ?? (FULL ? 600 : 60))
const WARM_UP_SECONDS = FULL ? 60 : 8
const RANKS = FULL ? 4 : 2

/** Prompts that greedy sampling continues always the same way on the same DP rank; their right texts are asked for first. */
const PROMPTS = ['Once upon a time', 'The ships', 'In the year 1850', 'It is a', 'My fellow citizens', 'function add(']
const LONGEST = 40

/** The server, from outside. */
class Served {
  readonly url: string
  readonly port: number

  constructor(url: string) {
    this.url = url
    this.port = Number(new URL(url).port)
  }

  post(path: string, body: unknown, init: RequestInit = {}): Promise<Response> {
    const headers = { 'content-type': 'application/json' }
    return fetch(this.url + path, { method: 'POST', headers, body: JSON.stringify(body), ...init })
  }

  async loads(): Promise<readonly { readonly dp_rank: number; readonly num_total_reqs: number }[]> {
    const response = await fetch(`${this.url}/v1/loads`)
    return ((await response.json()) as { loads: { dp_rank: number; num_total_reqs: number }[] }).loads
  }

  /** Resolves when no request is left in the engine or in the server. */
  async idle(): Promise<void> {
    for (let tries = 0; tries < 200; tries++) {
      const info = (await (await fetch(`${this.url}/server_info`)).json()) as { requests_in_flight: number }
      if (info.requests_in_flight === 0 && (await this.loads()).every(load => load.num_total_reqs === 0)) return
      await new Promise(resolve => setTimeout(resolve, 50))
    }
    throw new Error('requests were left behind')
  }
}

interface Tally {
  whole: number
  aborted: number
  refused: number
  slow: number
  wrong: string[]
}

describe('load', () => {
  it(
    `${STREAMS} streams for ${SECONDS} s`,
    async () => {
      const args = ['models/demo', '--context-length', '512', '--max-running-requests', '32', '--random-seed', '1']
      // A KV pool that the warm-up fills: memory that is touched for the first time later would look like growth.
      args.push('--max-total-tokens', '4096')
      args.push('--tp-size', String(RANKS), '--dp-size', '2', '--enable-dp-attention', '--max-stream-backlog', '256')
      await using serve = new ServeProcess(args)
      const url = await serve.url()
      if (url === null) throw new Error(`it did not start: ${serve.stderr}`)
      const served = new Served(url)
      const expected = await rightTexts(served)
      const tally: Tally = { whole: 0, aborted: 0, refused: 0, slow: 0, wrong: [] }
      const end = performance.now() + 1000 * SECONDS
      const health = watch(url, end)
      const clients = Array.from({ length: STREAMS }, (_, i) => client(served, expected, tally, i, end))
      const memory = watchMemory(serve.pid, end)
      await Promise.all(clients)
      const { latencies, failures } = await health
      expect(tally.wrong).toEqual([])
      expect(failures).toEqual([])
      expect(tally.whole).toBeGreaterThan(STREAMS)
      expect(tally.aborted).toBeGreaterThan(0)
      expect(tally.refused).toBeGreaterThan(0)
      await served.idle()
      expect(serve.stderr).not.toMatch(/error|warn/i)
      latencies.sort((a, b) => a - b)
      const p99 = latencies[Math.floor(0.99 * latencies.length)]!
      const { early, late } = await memory
      console.log(
        `load: ${JSON.stringify({ ...tally, wrong: tally.wrong.length })}, /health p99 ${p99.toFixed(1)} ms of ${latencies.length}, RSS ${(early / 1e6).toFixed(0)} → ${(late / 1e6).toFixed(0)} MB`,
      )
      // Only a long run says something about growth and delays; a short one catches a flood.
      expect(late).toBeLessThan(early * (FULL ? 1.05 : 1.5))
      if (FULL) expect(p99).toBeLessThan(50)
    },
    1000 * (SECONDS + 120),
  )
})

/** Text of each prompt on each DP rank, longest first asked for alone. */
async function rightTexts(served: Served): Promise<string[][]> {
  const ranks = (await served.loads()).map(load => load.dp_rank)
  const texts: string[][] = []
  for (const prompt of PROMPTS) {
    const of: string[] = []
    for (const routed_dp_rank of ranks) {
      const body = { prompt, max_tokens: LONGEST, temperature: 0, ignore_eos: true, routed_dp_rank }
      const response = await served.post('/v1/completions', body)
      of.push(((await response.json()) as { choices: { text: string }[] }).choices[0]!.text)
    }
    texts.push(of)
  }
  return texts
}

/** One client: request after request until the end, each of a random kind. */
async function client(
  served: Served,
  expected: readonly (readonly string[])[],
  tally: Tally,
  index: number,
  end: number,
): Promise<void> {
  const random = new CounterRandom(1000 + index, STREAM.benchmark)
  while (performance.now() < end) {
    const kind = random.below(10)
    const which = random.below(PROMPTS.length)
    const rank = random.below(expected[which]!.length)
    const tokens = 1 + random.below(LONGEST)
    const body = {
      prompt: PROMPTS[which],
      max_tokens: tokens,
      temperature: 0,
      ignore_eos: true,
      routed_dp_rank: rank,
      stream: kind !== 9,
    }
    const right = expected[which]![rank]!
    if (kind === 0) await refused(served, tally, random)
    else if (kind === 1) await aborted(served, body, right, tally, random)
    else if (kind === 2) await slowReader(served, body, tally)
    else {
      const response = await served.post('/v1/completions', body)
      const answer = await response.text()
      const text = body.stream
        ? streamed(answer)
        : (JSON.parse(answer) as { choices: { text: string }[] }).choices[0]!.text
      const done = !body.stream || answer.endsWith('data: [DONE]\n\n')
      if (done && text !== '' && right.startsWith(text)) tally.whole++
      // A token may be half a character: then its text is empty until the next.
      else if (done && text === '') tally.whole++
      else
        tally.wrong.push(`${response.status} ${JSON.stringify(text)} is not the beginning of ${JSON.stringify(right)}`)
    }
  }
}

const streamed = (answer: string): string =>
  answer
    .split('\n\n')
    .filter(event => event.startsWith('data: {'))
    .map(event => (JSON.parse(event.slice(6)) as { choices: { text: string }[] }).choices[0]?.text ?? '')
    .join('')

async function refused(served: Served, tally: Tally, random: CounterRandom): Promise<void> {
  const bad = [
    { prompt: [] },
    { prompt: 'x', top_p: 0 },
    { prompt: 'x', max_tokens: 1 << 20 },
    { prompt: 'x', routed_dp_rank: 99 },
  ]
  const response = await served.post('/v1/completions', bad[random.below(bad.length)])
  await response.text()
  if (response.status === 400) tally.refused++
  else tally.wrong.push(`a bad request got ${response.status}`)
}

async function aborted(
  served: Served,
  body: object,
  right: string,
  tally: Tally,
  random: CounterRandom,
): Promise<void> {
  const controller = new AbortController()
  const timer = setTimeout(() => controller.abort(), random.below(80))
  try {
    const text = streamed(await (await served.post('/v1/completions', body, { signal: controller.signal })).text())
    if (right.startsWith(text)) tally.whole++
    else tally.wrong.push(`mixed text ${JSON.stringify(text)}`)
  } catch {
    tally.aborted++
  } finally {
    clearTimeout(timer)
  }
}

/** Reads nothing for a while, then vanishes. */
async function slowReader(served: Served, body: object, tally: Tally): Promise<void> {
  const text = JSON.stringify(body)
  const socket = connect(served.port, '127.0.0.1')
  socket.on('error', () => {})
  socket.pause()
  socket.write(
    `POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: ${Buffer.byteLength(text)}\r\n\r\n${text}`,
  )
  await new Promise(resolve => setTimeout(resolve, 200))
  socket.destroy()
  tally.slow++
}

/** Asks in a thread of its own, so that the clients of this process do not delay it. */
const WATCH = `
const { request, Agent } = require('node:http')
const { parentPort, workerData } = require('node:worker_threads')
const agent = new Agent({ keepAlive: true, maxSockets: 1 })
const latencies = [], failures = []
const end = Date.now() + workerData.ms
const ask = () => {
  const begin = performance.now()
  request(workerData.url + '/health', { agent }, response => {
    response.resume().on('end', () => {
      latencies.push(performance.now() - begin)
      if (response.statusCode !== 200) failures.push('/health answered ' + response.statusCode)
      if (Date.now() < end) setTimeout(ask, 20)
      else { agent.destroy(); parentPort.postMessage({ latencies, failures }) }
    })
  }).on('error', e => { failures.push(String(e)); parentPort.postMessage({ latencies, failures }) }).end()
}
ask()`

function watch(url: string, end: number): Promise<{ latencies: number[]; failures: string[] }> {
  const worker = new Worker(WATCH, { eval: true, workerData: { url, ms: end - performance.now() } })
  return new Promise((resolve, reject) => {
    worker.once('message', resolve)
    worker.once('error', reject)
  })
}

/** Largest RSS of the third after the warm-up and of the last third. */
async function watchMemory(pid: number, end: number): Promise<{ early: number; late: number }> {
  const from = performance.now() + 1000 * WARM_UP_SECONDS
  const samples: number[] = []
  while (performance.now() < end) {
    await new Promise(resolve => setTimeout(resolve, 500))
    if (performance.now() >= from) samples.push(rssOf(pid))
  }
  const third = Math.ceil(samples.length / 3)
  return { early: Math.max(...samples.slice(0, third)), late: Math.max(...samples.slice(-third)) }
}

/** Bytes. */
function rssOf(pid: number): number {
  if (existsSync(`/proc/${pid}/status`)) {
    return 1024 * Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1])
  }
  return 1024 * Number(execFileSync('ps', ['-o', 'rss=', '-p', String(pid)], { encoding: 'utf8' }))
}
