// /metrics: every line follows the text format, names follow promtool's rules, and the numbers are those of the requests
// that were made. promtool itself is asked too where it is installed.
import { spawnSync } from 'node:child_process'
import { describe, expect, it } from 'vitest'
import { serveEngine } from '../../../test/serving/serve-engine.js'
import { NullEngine } from '../../engine/null-engine.js'
import { Buckets } from './buckets.js'
import { Rate } from './rate.js'

interface Family {
  readonly type: string
  readonly samples: Map<string, number>
}

const SAMPLE =
  /^([a-zA-Z_:][a-zA-Z0-9_:]*)(\{((?:[a-zA-Z_]\w*="(?:[^"\\\n]|\\["\\n])*",?)*)\})? (-?[\d.]+(?:e[+-]?\d+)?|[+-]Inf|NaN)$/

/** A strict reader of the text format, version 0.0.4. @throws on anything it does not allow */
function parse(text: string): Map<string, Family> {
  const families = new Map<string, Family>()
  const helped = new Set<string>()
  let current = ''
  expect(text.endsWith('\n')).toBe(true)
  for (const line of text.split('\n')) {
    if (line === '') continue
    const help = /^# HELP (\S+) (.+)$/.exec(line)
    const type = /^# TYPE (\S+) (counter|gauge|histogram)$/.exec(line)
    if (help) {
      expect(helped.has(help[1]!), `HELP twice: ${line}`).toBe(false)
      helped.add(help[1]!)
    } else if (type) {
      current = type[1]!
      expect(helped.has(current) && !families.has(current), line).toBe(true)
      families.set(current, { type: type[2]!, samples: new Map() })
    } else {
      const found = SAMPLE.exec(line)
      if (found === null) throw new Error(`no sample: ${line}`)
      const family = families.get(current)!
      const suffix = found[1]!.slice(current.length)
      expect(found[1]!.startsWith(current), line).toBe(true)
      expect(family.type === 'histogram' ? ['_bucket', '_sum', '_count'] : [''], line).toContain(suffix)
      const key = `${suffix}{${found[3] ?? ''}}`
      expect(family.samples.has(key), `twice: ${line}`).toBe(false)
      family.samples.set(key, Number(found[4]!.replace('Inf', 'Infinity')))
    }
  }
  return families
}

/** What promtool's linter says of names. */
function lint(families: ReadonlyMap<string, Family>): void {
  for (const [name, { type, samples }] of families) {
    expect(name).toMatch(/^switchyard_[a-z0-9_]+$/)
    expect(name).not.toMatch(/_(milliseconds|minutes|hours|ms|kb|mb|info|counter|gauge|histogram)(_|$)/)
    expect(name.endsWith('_total'), name).toBe(type === 'counter')
    if (type !== 'histogram') continue
    let last = 0
    for (const [key, value] of samples) {
      if (!key.startsWith('_bucket')) {
        last = 0
        continue
      }
      expect(value, `${name} falls`).toBeGreaterThanOrEqual(last)
      last = value
    }
  }
}

async function scraped(url: string): Promise<{ text: string; families: Map<string, Family> }> {
  const response = await fetch(`${url}/metrics`)
  expect(response.headers.get('content-type')).toMatch(/^text\/plain; version=0.0.4/)
  const text = await response.text()
  return { text, families: parse(text) }
}

describe('/metrics', () => {
  it('counts what happened, by DP rank, in the text format', async () => {
    await using served = await serveEngine(new NullEngine({ dpRanks: 2 }), { apiKey: null })
    const ask = (body: object) => served.post('/v1/completions', { prompt: 'abcd', max_tokens: 5, ...body })
    await (await ask({})).text()
    await (await ask({ stream: true })).text()
    await (await ask({ stop_token_ids: [258] })).text()
    expect((await ask({ n: 0 })).status).toBe(400)
    const { text, families } = await scraped(served.url)
    lint(families)
    const all = (name: string, suffix = '') =>
      [...families.get(`switchyard_${name}`)!.samples]
        .filter(([key]) => key.startsWith(`${suffix}{`))
        .reduce((sum, [, value]) => sum + value, 0)
    expect(all('generation_tokens_total')).toBe(5 + 5 + 3)
    expect(all('prompt_tokens_total')).toBe(12)
    expect(all('num_requests_total')).toBe(3)
    expect(all('num_aborted_requests_total')).toBe(0)
    expect(all('time_to_first_token_seconds', '_count')).toBe(3)
    expect(all('inter_token_latency_seconds', '_count')).toBe(4 + 4 + 2)
    expect(all('e2e_request_latency_seconds', '_count')).toBe(3)
    const finished = families.get('switchyard_request_success_total')!.samples
    const by = (rank: number, reason: string) =>
      finished.get(`{model_name="null",dp_rank="${rank}",finished_reason="${reason}"}`)
    expect([by(0, 'length'), by(1, 'length'), by(0, 'stop'), by(1, 'stop')]).toEqual([1, 1, 1, 0])
    const http = families.get('switchyard_http_requests_total')!.samples
    expect(http.get('{method="POST",path="/v1/completions",status="200"}')).toBe(3)
    expect(http.get('{method="POST",path="/v1/completions",status="400"}')).toBe(1)
    const tool = spawnSync('promtool', ['check', 'metrics'], { input: text, encoding: 'utf8' })
    if (tool.error === undefined) expect([tool.status, tool.stdout + tool.stderr]).toEqual([0, ''])
  })

  it('counts requests that were given up', async () => {
    await using served = await serveEngine(new NullEngine({ stepMs: 5 }))
    const controller = new AbortController()
    const pending = served.post('/v1/completions', { prompt: 'a', max_tokens: 1000 }, { signal: controller.signal })
    while (served.engine.state()[0]!.running === 0) await new Promise(resolve => setTimeout(resolve, 5))
    controller.abort()
    await expect(pending).rejects.toThrow()
    while (served.server.inFlight > 0) await new Promise(resolve => setTimeout(resolve, 5))
    const { families } = await scraped(served.url)
    const [aborted] = families.get('switchyard_num_aborted_requests_total')!.samples.values()
    expect(aborted).toBe(1)
  })
})

describe('buckets and rates', () => {
  it('put a value into the first bucket that holds it', () => {
    const buckets = new Buckets([1, 2, 5])
    for (const value of [0, 1, 1.5, 2, 6, 6]) buckets.observe(value)
    expect([...buckets.counts]).toEqual([2, 2, 0, 2])
    expect(buckets.lines('x', 'a="b"')).toContain('x_bucket{a="b",le="5"} 4\nx_bucket{a="b",le="+Inf"} 6\n')
    expect(buckets.sum).toBe(16.5)
  })

  it('average over ten whole seconds', () => {
    const rate = new Rate()
    for (let second = 0; second < 10; second++) rate.add(5, second + 0.5)
    expect([rate.perSecond(10.1), rate.perSecond(15.9)]).toEqual([5, 2.5])
    for (let second = 10; second < 20; second++) for (const part of [0.1, 0.9]) rate.add(4, second + part)
    expect(rate.perSecond(20.1)).toBe(8)
    expect(rate.perSecond(100)).toBe(0)
  })
})
