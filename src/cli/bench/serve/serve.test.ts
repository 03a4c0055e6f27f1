// bench serve: arithmetic of results, prompts and arrivals by their definitions, and whole runs against real servers.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import { captureIo } from '../../../../test/capture-io.js'
import { serveEcho } from '../../../../test/serve-echo.js'
import { serveEngine } from '../../../../test/serving/serve-engine.js'
import { NullEngine } from '../../../engine/null-engine.js'
import { run } from '../../main.js'
import type { Sample } from './client.js'
import { type DatasetOptions, makePrompts } from './datasets.js'
import { parseGoals, parseRates } from './flags.js'
import { arrivals, runLoad } from './load.js'
import type { ServeReport } from './report.js'
import { block, resultOf, spreadOf } from './result.js'

const directory = mkdtempSync(join(tmpdir(), 'bench-serve-'))
afterAll(() => rmSync(directory, { recursive: true }))

const sample = (fields: Partial<Sample>): Sample => ({
  begun: 0,
  firstToken: 100,
  ended: 400,
  itl: [100, 200],
  promptTokens: 10,
  outputTokens: 3,
  error: null,
  ...fields,
})

describe('results', () => {
  const options = { requestRate: 2, maxConcurrency: 4, percentiles: [50, 99], goals: {}, durationMs: 2000 }

  it('count tokens, requests and latencies of what was answered', () => {
    const failed = sample({ error: 'gone', promptTokens: 0 })
    const result = resultOf([sample({}), sample({ begun: 200, firstToken: 250, ended: 850 }), failed], options)
    expect(result).toMatchObject({
      completed: 2,
      failed: 1,
      errors: { gone: 1 },
      totalInputTokens: 20,
      totalOutputTokens: 6,
      requestThroughput: 1,
      outputThroughput: 3,
      totalTokenThroughput: 13,
      peakConcurrency: 2,
      requestGoodput: null,
    })
    expect(result.latency.ttft).toMatchObject({ mean: 75, median: 75 })
    expect(result.latency.tpot.mean).toBe((150 + 300) / 2)
    expect(result.latency.itl.mean).toBe(150)
    expect(result.latency.e2el.percentiles['99']).toBeCloseTo(400 + 0.99 * 250)
  })

  it('count as goodput what keeps every goal', () => {
    const samples = [sample({}), sample({ firstToken: 300 }), sample({ itl: [500] })]
    const of = (...goals: string[]) => resultOf(samples, { ...options, goals: parseGoals(goals) }).requestGoodput
    expect(of('ttft:100')).toBe(1)
    expect(of('ttft:300')).toBe(1.5)
    expect(of('ttft:300', 'itl:200')).toBe(1)
    expect(of('e2el:1')).toBe(0)
  })

  it('interpolate percentiles as numpy does', () => {
    const spread = spreadOf([4, 1, 3, 2], [25, 50, 99])
    expect(spread).toMatchObject({ mean: 2.5, median: 2.5, percentiles: { 25: 1.75, 50: 2.5 } })
    expect(spread.percentiles['99']).toBeCloseTo(3.97)
    expect(spread.std).toBeCloseTo(Math.sqrt(1.25))
    expect(spreadOf([], [99]).percentiles['99']).toBe(0)
  })

  it('print the block that users of vLLM know', () => {
    const text = block(resultOf([sample({})], options), ['ttft', 'e2el'])
    expect(text.split('\n')[0]).toBe('============ Serving Benchmark Result ============')
    expect(text).toContain('Successful requests:                     1\n')
    expect(text).toContain('Output token throughput (tok/s):         1.50\n')
    expect(text).toContain('P99 TTFT (ms):                           100.00\n')
    expect(text).not.toContain('TPOT')
  })
})

describe('load', () => {
  it('arrives as a Poisson process, the same for the same seed', () => {
    const at = arrivals(4000, { requestRate: 10, maxConcurrency: null, seed: 3 })
    expect(at).toEqual(arrivals(4000, { requestRate: 10, maxConcurrency: null, seed: 3 }))
    const gaps = at.slice(1).map((t, i) => t - at[i]!)
    const mean = gaps.reduce((a, b) => a + b) / gaps.length
    const variance = gaps.reduce((a, b) => a + (b - mean) ** 2, 0) / gaps.length
    // An exponential distribution: mean and standard deviation are equal. 4,000 draws: within 5 %.
    expect(mean).toBeGreaterThan(0.095)
    expect(mean).toBeLessThan(0.105)
    expect(Math.sqrt(variance) / mean).toBeGreaterThan(0.95)
    expect(Math.sqrt(variance) / mean).toBeLessThan(1.05)
    expect(arrivals(3, { requestRate: Infinity, maxConcurrency: null, seed: 3 })).toEqual([0, 0, 0])
  })

  it('never runs more than it may', async () => {
    let running = 0
    let most = 0
    const send = async (): Promise<Sample> => {
      most = Math.max(most, ++running)
      await new Promise(resolve => setImmediate(resolve))
      running--
      return sample({})
    }
    const prompts = Array.from({ length: 40 }, () => ({ prompt: 'x', outputTokens: 1 }))
    const load = { requestRate: Infinity, maxConcurrency: 3, seed: 0 }
    expect(await runLoad(prompts, load, send, new AbortController().signal)).toHaveLength(40)
    expect(most).toBe(3)
  })

  it('takes rates and refuses what is none', () => {
    expect(parseRates('1, 2.5,inf', '--sweep')).toEqual([1, 2.5, Infinity])
    expect(() => parseRates('0', '--request-rate')).toThrow(/--request-rate/)
    expect(() => parseGoals(['ttft'])).toThrow(/--goodput/)
  })
})

describe('datasets', () => {
  const options: DatasetOptions = {
    datasetName: 'random',
    datasetPath: null,
    numPrompts: 50,
    seed: 1,
    randomInputLen: 20,
    randomOutputLen: 10,
    randomRangeRatio: 0.5,
    randomPrefixLen: 4,
    prefixRepetitionPrefixLen: 8,
    prefixRepetitionSuffixLen: 4,
    prefixRepetitionNumPrefixes: 5,
    prefixRepetitionOutputLen: 6,
    customOutputLen: 7,
  }

  it('random: lengths within the ratio, one prefix for all, the same for the same seed', () => {
    const prompts = makePrompts(options, 100)
    expect(prompts).toEqual(makePrompts(options, 100))
    expect(prompts).not.toEqual(makePrompts({ ...options, seed: 2 }, 100))
    for (const { prompt, outputTokens } of prompts) {
      expect(prompt.length).toBeGreaterThanOrEqual(4 + 10)
      expect(prompt.length).toBeLessThanOrEqual(4 + 30)
      expect(outputTokens).toBeGreaterThanOrEqual(5)
      expect(outputTokens).toBeLessThanOrEqual(15)
      expect(prompt.slice(0, 4)).toEqual(prompts[0]!.prompt.slice(0, 4))
      expect((prompt as number[]).every(id => id >= 0 && id < 100)).toBe(true)
    }
    const text = makePrompts({ ...options, randomRangeRatio: 0, randomPrefixLen: 0 }, null)[0]!.prompt as string
    expect(text.split(' ')).toHaveLength(20)
  })

  it('prefix_repetition: every prefix equally often', () => {
    const prompts = makePrompts({ ...options, datasetName: 'prefix_repetition' }, 1000)
    const count = new Map<string, number>()
    for (const { prompt } of prompts) {
      const prefix = prompt.slice(0, 8).toString()
      count.set(prefix, (count.get(prefix) ?? 0) + 1)
      expect(prompt).toHaveLength(12)
    }
    expect([...count.values()]).toEqual(Array(5).fill(10))
  })

  it('custom: lines of JSON, and which one is wrong', () => {
    const file = join(directory, 'data.jsonl')
    const custom = { ...options, datasetName: 'custom', datasetPath: file, numPrompts: 3 } as const
    writeFileSync(file, '{"prompt": "a"}\n\n{"prompt": "b", "output_tokens": 9}\n')
    const prompts = makePrompts(custom, null)
    expect(prompts).toHaveLength(3)
    expect(new Set(prompts.map(p => `${p.prompt}${p.outputTokens}`))).toEqual(new Set(['a7', 'b9']))
    writeFileSync(file, '{"prompt": "a"}\n{"text": "b"}\n')
    expect(() => makePrompts(custom, null)).toThrow(/line 2/)
    expect(() => makePrompts({ ...custom, datasetPath: join(directory, 'none') }, null)).toThrow(/none/)
    expect(() => makePrompts({ ...custom, datasetPath: null }, null)).toThrow(/custom dataset/)
  })
})

describe('the command', () => {
  const bench = async (args: readonly string[]) => {
    const io = captureIo()
    const code = await run(['bench', 'serve', ...args], io)
    return { io, code }
  }

  it('measures a server, sweeps over rates, writes JSON and HTML', async () => {
    await using served = await serveEngine(new NullEngine())
    const [json, html] = [join(directory, 'result.json'), join(directory, 'result.html')]
    const { io, code } = await bench([
      ...[
        '--base-url',
        `${served.url}/v1`,
        '--num-prompts',
        '20',
        '--random-input-len',
        '8',
        '--random-output-len',
        '5',
      ],
      ...[
        '--sweep',
        '200,inf',
        '--max-concurrency',
        '4',
        '--goodput',
        'ttft:60000',
        'e2el:60000',
        '--num-warmups',
        '2',
      ],
      ...['--save-result', json, '--html', html],
    ])
    expect([io.stderr, code]).toEqual(['request rate 200\nrequest rate inf\n', 0])
    expect(io.stdout.match(/Serving Benchmark Result/g)).toHaveLength(2)
    const report = JSON.parse(readFileSync(json, 'utf8')) as ServeReport
    expect(report.runs.map(r => r.requestRate)).toEqual([200, 'inf'])
    for (const result of report.runs) {
      expect(result).toMatchObject({ completed: 20, failed: 0, totalInputTokens: 160, totalOutputTokens: 100 })
      expect(result.peakConcurrency).toBeLessThanOrEqual(4)
      expect(result.requestGoodput).toBe(result.requestThroughput)
    }
    const page = readFileSync(html, 'utf8')
    expect(page).toContain('<svg')
    expect(page).not.toMatch(/<script|src=|href="http/)
  })

  it('speaks chat, and whole answers', async () => {
    await using served = await serveEngine(new NullEngine(), { apiKey: 'k' })
    const common = [
      '--base-url',
      served.url,
      '--api-key',
      'k',
      '--num-prompts',
      '5',
      '--json',
      '--random-output-len',
      '3',
    ]
    for (const more of [['--backend', 'openai-chat'], ['--no-stream']]) {
      const { io, code } = await bench([...common, ...more])
      expect([io.stderr, code]).toEqual(['', 0])
      expect((JSON.parse(io.stdout) as ServeReport).runs[0]).toMatchObject({ completed: 5, totalOutputTokens: 15 })
    }
  })

  it('counts failures by their reason, and fails when nothing works', async () => {
    await using echo = await serveEcho()
    const file = join(directory, 'some-fail.jsonl')
    const ask = [
      '--base-url',
      echo.server.url,
      '--dataset-name',
      'custom',
      '--dataset-path',
      file,
      '--custom-output-len',
      '6',
    ]
    writeFileSync(file, '{"prompt": "FAIL"}\n{"prompt": "fine"}\n')
    const half = await bench([...ask, '--num-prompts', '4'])
    expect(half.code).toBe(0)
    expect(half.io.stderr).toContain('2 failed: the echo broke')
    expect(half.io.stdout).toContain('Failed requests:                         2')
    writeFileSync(file, '{"prompt": "REFUSE"}\n')
    const none = await bench([...ask, '--num-prompts', '2'])
    expect([none.code, none.io.stderr]).toEqual([1, expect.stringContaining('SY_BENCH_ALL_FAILED')])
  })

  it('says when no server answers', async () => {
    const { io, code } = await bench(['--base-url', 'http://127.0.0.1:9'])
    expect([code, io.stderr]).toEqual([2, expect.stringMatching(/SY_BENCH_NO_SERVER.*127\.0\.0\.1:9/)])
  })

  it('measures our server alone', async () => {
    const { io, code } = await bench([
      '--null',
      '--num-prompts',
      '50',
      '--random-input-len',
      '4',
      '--random-output-len',
      '20',
      '--json',
    ])
    expect([io.stderr, code]).toEqual(['', 0])
    const report = JSON.parse(io.stdout) as ServeReport
    expect(report).toMatchObject({ model: 'null', runs: [{ completed: 50, totalOutputTokens: 1000 }] })
  })
})
