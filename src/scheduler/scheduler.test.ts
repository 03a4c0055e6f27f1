// Batches, admission, retraction and prefixes of one attention-DP rank, and any mix of them.
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { PagePool } from '../kvcache/index.js'
import { type LocalBatch, type RankRequest, Scheduler, type SchedulerLimits } from './index.js'

const request = (
  id: string,
  prompt: number | readonly number[],
  maxTokens: number,
  more: Partial<RankRequest> = {},
): RankRequest => ({
  id,
  inputIds: typeof prompt === 'number' ? Int32Array.from({ length: prompt }, (_, i) => i + 1) : Int32Array.from(prompt),
  maxTokens,
  temperature: 0,
  topP: 1,
  topK: 0,
  minP: 0,
  seedLow: 0,
  seedHigh: 0,
  endTokenIds: [],
  wantLogits: false,
  isHealthCheck: false,
  priority: 0,
  ...more,
})

const PAGE = 4
const scheduler = (pages: number, limits: Partial<SchedulerLimits> = {}) => {
  const pool = new PagePool(pages, PAGE)
  const usual = {
    chunkedPrefillSize: 8,
    maxRunningRequests: 4,
    logitRows: 4,
    prefixCache: false,
    conservativeness: 1,
    prefillDecodeInterval: 0,
  }
  const all = { ...usual, ...limits }
  return { pool, limits: all, scheduler: new Scheduler(pool, all) }
}

const zeros = new Float32Array(64)
/** What a model would draw: a pure function of the request's tokens so far. */
const drawn = (batch: LocalBatch): Int32Array => {
  const out: number[] = []
  for (const { state, sample, wantLogits, count, from } of batch.slices) {
    const rows = wantLogits ? count : sample ? 1 : 0
    let hash = 7
    for (let i = 0; i < from + count; i++) hash = (hash * 31 + state.tokens[i]!) % 1009
    for (let i = 0; i < rows; i++) out.push(hash)
  }
  return Int32Array.from(out)
}
const shape = (batch: LocalBatch) => batch.slices.map(x => [x.state.id, x.count])

/** Runs to the end. @returns tokens of each request and prompt tokens computed in all */
function serve(s: Scheduler, steps = 3000): { tokens: Map<string, number[]>; prefilled: number } {
  const tokens = new Map<string, number[]>()
  for (let step = 0; step < steps; step++) {
    const batch = s.form(step)
    if (batch.tokens === 0) break
    for (const p of s.commit(batch, drawn(batch), zeros)) {
      if (p.token !== null) tokens.set(p.id, [...(tokens.get(p.id) ?? []), p.token])
    }
  }
  return { tokens, prefilled: s.counters.prefilledTokens }
}

describe('Scheduler: batches', () => {
  it('cuts a prompt into chunks and samples only after the last', () => {
    const { scheduler: s } = scheduler(20, { chunkedPrefillSize: 3 })
    s.add(request('a', 7, 2))
    const counts: number[][] = []
    for (let batch = s.form(0); batch.tokens > 0; batch = s.form(0)) {
      counts.push([batch.tokens, batch.logitRows])
      s.commit(batch, drawn(batch), zeros)
    }
    expect(counts).toEqual([
      [3, 0],
      [3, 0],
      [1, 1],
      [1, 1],
    ])
  })

  it('keeps decoding while a long prompt is prefilled: at most one chunk between two tokens', () => {
    const { scheduler: s } = scheduler(50, { chunkedPrefillSize: 4 })
    s.add(request('short', 2, 20))
    const first = s.form(0)
    s.commit(first, drawn(first), zeros)
    s.add(request('long', 30, 1))
    for (let i = 0; i < 5; i++) {
      const batch = s.form(0)
      expect(batch.mode).toBe('mixed')
      expect(shape(batch)).toEqual([
        ['short', 1],
        ['long', 4],
      ])
      s.commit(batch, drawn(batch), zeros)
    }
  })

  it('rests from prefill for the interval while others decode, and not when nobody does', () => {
    const { scheduler: s } = scheduler(50, { chunkedPrefillSize: 4, prefillDecodeInterval: 2 })
    s.add(request('short', 2, 20))
    let batch = s.form(0)
    s.commit(batch, drawn(batch), zeros)
    s.add(request('long', 12, 1))
    const modes: string[] = []
    for (let i = 0; i < 7; i++) {
      batch = s.form(0)
      modes.push(batch.mode)
      s.commit(batch, drawn(batch), zeros)
    }
    expect(modes).toEqual(['decode', 'decode', 'mixed', 'decode', 'decode', 'mixed', 'decode'])
    const { scheduler: alone } = scheduler(50, { chunkedPrefillSize: 4, prefillDecodeInterval: 2 })
    alone.add(request('long', 12, 1))
    expect(serve(alone).tokens.get('long')).toHaveLength(1)
  })

  it('holds prompts back when told to, but never an idle rank', () => {
    const { scheduler: s } = scheduler(50)
    s.add(request('a', 2, 5))
    const first = s.form(0)
    s.commit(first, drawn(first), zeros)
    s.add(request('b', 6, 5))
    expect(s.hasPrefill).toBe(true)
    expect(shape(s.form(0, false))).toEqual([['a', 1]])
    expect(shape(s.form(0, true))).toEqual([
      ['a', 1],
      ['b', 6],
    ])
  })

  it('ends on an end token with "stop" and on the limit with "length"', () => {
    const { scheduler: s } = scheduler(20)
    s.add(request('stops', 1, 5, { endTokenIds: [9] }))
    s.add(request('runs', 1, 1))
    const batch = s.form(0)
    const ends = s.commit(batch, Int32Array.of(9, 9), zeros).map(p => [p.id, p.end])
    expect(ends).toEqual([
      ['stops', 'stop'],
      ['runs', 'length'],
    ])
  })

  it('forms the same batch again when a step failed', () => {
    const { scheduler: s } = scheduler(20)
    s.add(request('a', 5, 3))
    const pages = (b: LocalBatch) => b.slices.map(x => [x.state.id, x.from, x.count, x.sample, [...x.state.pages]])
    expect(pages(s.form(0))).toEqual(pages(s.form(0)))
  })

  it('does nothing while paused', () => {
    const { scheduler: s } = scheduler(20)
    s.add(request('a', 5, 3))
    s.paused = true
    expect(s.form(0).tokens).toBe(0)
    s.paused = false
    expect(s.form(0).tokens).toBe(5)
  })
})

describe('Scheduler: admission', () => {
  it('lets a request wait until what it will probably need is there, in order of arrival', () => {
    const { scheduler: s } = scheduler(5, { conservativeness: 2 })
    s.add(request('big', 8, 8))
    s.add(request('second', 8, 8))
    s.add(request('small', 1, 1))
    const batch = s.form(0)
    expect(shape(batch)).toEqual([['big', 8]])
    expect([s.runningCount, s.waitingCount]).toEqual([1, 2])
    s.commit(batch, drawn(batch), zeros)
    expect(s.abort('big')).toBe(true)
    expect(s.usedTokens).toBe(0)
    s.form(0)
    expect([s.runningCount, s.waitingCount]).toEqual([2, 0])
  })

  it('admits larger priorities first, equals in order of arrival', () => {
    const { scheduler: s } = scheduler(50, { maxRunningRequests: 1 })
    for (const [id, priority] of [
      ['a', 0],
      ['b', 5],
      ['c', 5],
      ['d', 9],
    ] as const)
      s.add(request(id, 2, 1, { priority }))
    expect([...serve(s).tokens.keys()]).toEqual(['d', 'b', 'c', 'a'])
  })
})

describe('Scheduler: retraction', () => {
  it('puts the youngest back when pages run out, loses nothing and changes no token', () => {
    const requests = Array.from({ length: 6 }, (_, i) => request(`${i}`, [i + 1, 2, 3], 30))
    const roomy = scheduler(200, { maxRunningRequests: 8, logitRows: 8 })
    for (const r of requests) roomy.scheduler.add(r)
    const expected = serve(roomy.scheduler)
    const tight = scheduler(20, { maxRunningRequests: 8, logitRows: 8, conservativeness: 0.01 })
    for (const r of requests) tight.scheduler.add(r)
    const found = serve(tight.scheduler)
    expect(tight.scheduler.counters.retractions).toBeGreaterThan(0)
    expect(roomy.scheduler.counters.retractions).toBe(0)
    expect(found.tokens).toEqual(expected.tokens)
    expect(tight.scheduler.usedTokens).toBe(0)
  })

  it('takes the lowest priority first, then the youngest', () => {
    const { scheduler: s } = scheduler(6, { conservativeness: 0.01 })
    s.add(request('low', 7, 10, { priority: -1 }))
    s.add(request('old', 7, 10))
    s.add(request('young', 7, 10))
    const order: string[] = []
    for (let i = 0; i < 40 && s.counters.retractions < 1; i++) {
      const batch = s.form(i)
      order.push(...batch.slices.map(x => x.state.id))
      s.commit(batch, drawn(batch), zeros)
    }
    expect(s.counters.retractions).toBe(1)
    const after = s.form(99)
    expect(after.slices.map(x => x.state.id)).not.toContain('low')
    expect(order).toContain('low')
  })
})

describe('Scheduler: prefix cache', () => {
  const shared = Array.from({ length: 40 }, (_, i) => i + 100)

  it('computes a shared prompt once, also when all arrive at the same time', () => {
    const { scheduler: s } = scheduler(400, { prefixCache: true, maxRunningRequests: 16, logitRows: 16 })
    for (let i = 0; i < 20; i++) s.add(request(`${i}`, [...shared, 1000 + i, 3, 4], 2))
    const { tokens, prefilled } = serve(s)
    expect(tokens.size).toBe(20)
    expect(prefilled).toBeLessThanOrEqual(40 + 20 * 3 + 8)
    expect(s.counters.cachedTokens).toBe(19 * 40)
  })

  it('gives the tokens of a run without the cache', () => {
    const prompt = fc.array(fc.integer({ min: 0, max: 2 }), { minLength: 1, maxLength: 20 })
    fc.assert(
      fc.property(fc.array(fc.tuple(prompt, fc.integer({ min: 1, max: 6 })), { maxLength: 10 }), cases => {
        const run = (prefixCache: boolean) => {
          const { scheduler: s } = scheduler(30, { prefixCache })
          cases.forEach(([ids, n], i) => {
            s.add(request(`${i}`, ids, n))
          })
          return serve(s).tokens
        }
        expect(run(true)).toEqual(run(false))
      }),
    )
  })

  it('keeps pages for later requests until they are needed, and forgets them when told to', () => {
    const { scheduler: s, pool } = scheduler(30, { prefixCache: true })
    s.add(request('a', shared, 1))
    serve(s)
    expect([s.usedTokens, pool.freePages]).toEqual([0, 20])
    expect(s.flushCache()).toBe(10)
    expect(pool.freePages).toBe(30)
  })

  it('resumes a retracted request from what is still cached', () => {
    const tight = scheduler(16, { prefixCache: true, maxRunningRequests: 4, conservativeness: 0.01 })
    for (let i = 0; i < 4; i++) tight.scheduler.add(request(`${i}`, [i, 5, 6, 7], 30))
    const { tokens } = serve(tight.scheduler)
    expect([...tokens.values()].every(t => t.length === 30)).toBe(true)
    expect(tight.scheduler.counters.retractions).toBeGreaterThan(0)
  })
})

describe('Scheduler: any mix', () => {
  const arrival = fc.record({
    prompt: fc.array(fc.integer({ min: 0, max: 3 }), { minLength: 1, maxLength: 25 }),
    maxTokens: fc.integer({ min: 1, max: 10 }),
    wantLogits: fc.boolean(),
    priority: fc.integer({ min: -1, max: 1 }),
    abortAfter: fc.option(fc.integer({ min: 0, max: 12 })),
  })
  const setting = fc.record({
    chunkedPrefillSize: fc.integer({ min: 1, max: 9 }),
    prefixCache: fc.boolean(),
    prefillDecodeInterval: fc.integer({ min: 0, max: 2 }),
  })

  it('serves requests and aborts to the end within its limits', () => {
    fc.assert(
      fc.property(fc.array(arrival, { maxLength: 14 }), setting, (arrivals, chosen) => {
        const { scheduler: s, pool, limits } = scheduler(12, { ...chosen, conservativeness: 0.3 })
        const tokens = new Map<string, number>()
        const logits = new Map<string, number>()
        const ended = new Set<string>()
        const aborted = new Set<string>()
        arrivals.forEach(({ prompt, maxTokens, wantLogits, priority }, i) => {
          s.add(request(`${i}`, prompt, wantLogits ? 0 : maxTokens, { wantLogits, priority }))
        })
        for (let step = 0; step < 3000; step++) {
          arrivals.forEach(({ abortAfter }, i) => {
            if (abortAfter !== step || ended.has(`${i}`)) return
            expect(s.abort(`${i}`)).toBe(true)
            aborted.add(`${i}`)
          })
          const batch = s.form(step)
          if (batch.tokens === 0) {
            if (step > 12) break
            continue
          }
          const prefilled = batch.slices.reduce((sum, x) => sum + (x.extend ? x.count : 0), 0)
          expect(prefilled).toBeLessThanOrEqual(limits.chunkedPrefillSize)
          expect(batch.slices.length).toBeLessThanOrEqual(limits.maxRunningRequests)
          expect(batch.logitRows).toBeLessThanOrEqual(limits.logitRows)
          for (const { state, from, count } of batch.slices) {
            expect(state.pages.length * PAGE).toBeGreaterThanOrEqual(from + count)
          }
          const own = batch.slices.flatMap(x => x.state.pages.slice(x.state.path.length))
          expect(new Set(own).size).toBe(own.length)
          for (const p of s.commit(batch, drawn(batch), zeros)) {
            if (p.token !== null) tokens.set(p.id, (tokens.get(p.id) ?? 0) + 1)
            else logits.set(p.id, (logits.get(p.id) ?? 0) + p.logitRows)
            if (p.end) ended.add(p.id)
          }
        }
        arrivals.forEach(({ prompt, maxTokens, wantLogits }, i) => {
          const id = `${i}`
          expect(ended.has(id) !== aborted.has(id)).toBe(true)
          if (aborted.has(id)) return
          if (wantLogits) expect(logits.get(id)).toBe(prompt.length)
          else expect(tokens.get(id)).toBe(maxTokens)
        })
        expect(s.usedTokens).toBe(0)
        s.flushCache()
        expect(pool.freePages).toBe(12)
      }),
      { numRuns: 300 },
    )
  })
})
