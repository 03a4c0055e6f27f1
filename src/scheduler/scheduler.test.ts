import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { PagePool } from '../kvcache/index.js'
import { type LocalBatch, type RankRequest, Scheduler } from './index.js'

const request = (id: string, prompt: number, maxTokens: number, more: Partial<RankRequest> = {}): RankRequest => ({
  id,
  key: 1,
  inputIds: Int32Array.from({ length: prompt }, (_, i) => i + 1),
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
  ...more,
})

const scheduler = (
  pages: number,
  limits: Partial<{ chunkedPrefillSize: number; maxRunningRequests: number; logitRows: number }> = {},
) => {
  const pool = new PagePool(pages, 4)
  const all = { chunkedPrefillSize: 8, maxRunningRequests: 4, logitRows: 4, ...limits }
  return { pool, limits: all, scheduler: new Scheduler(pool, all) }
}

const zeros = new Float32Array(64)
const tokens = (batch: LocalBatch, value = 9) => new Int32Array(batch.logitRows).fill(value)

describe('Scheduler', () => {
  it('cuts a prompt into chunks and samples only after the last', () => {
    const { scheduler: s } = scheduler(20, { chunkedPrefillSize: 3 })
    s.add(request('a', 7, 2))
    const counts: number[][] = []
    for (let batch = s.form(0); batch.tokens > 0; batch = s.form(0)) {
      counts.push([batch.tokens, batch.logitRows])
      s.commit(batch, tokens(batch), zeros)
    }
    expect(counts).toEqual([
      [3, 0],
      [3, 0],
      [1, 1],
      [1, 1],
    ])
  })

  it('keeps decoding while a long prompt is prefilled', () => {
    const { scheduler: s } = scheduler(50, { chunkedPrefillSize: 4 })
    s.add(request('short', 2, 20))
    const first = s.form(0)
    s.commit(first, tokens(first), zeros)
    s.add(request('long', 30, 1))
    for (let i = 0; i < 5; i++) {
      const batch = s.form(0)
      expect(batch.mode).toBe('mixed')
      expect(batch.slices.map(x => [x.state.id, x.count])).toEqual([
        ['short', 1],
        ['long', 4],
      ])
      s.commit(batch, tokens(batch), zeros)
    }
  })

  it('lets a request wait until its whole need can be reserved, in order of arrival', () => {
    const { scheduler: s, pool } = scheduler(5)
    s.add(request('big', 8, 8))
    s.add(request('second', 8, 8))
    s.add(request('small', 1, 1))
    let batch = s.form(0)
    expect(batch.slices.map(x => x.state.id)).toEqual(['big'])
    expect([s.runningCount, s.waitingCount]).toEqual([1, 2])
    s.commit(batch, tokens(batch), zeros)
    expect(s.abort('big')).toBe(true)
    expect(pool.usedTokens).toBe(0)
    batch = s.form(0)
    expect(batch.slices.map(x => x.state.id)).toEqual(['second'])
    expect([s.runningCount, s.waitingCount]).toEqual([2, 0])
  })

  it('ends on an end token with "stop" and on the limit with "length"', () => {
    const { scheduler: s } = scheduler(20)
    s.add(request('stops', 1, 5, { endTokenIds: [9] }))
    s.add(request('runs', 1, 1))
    const batch = s.form(0)
    const ends = s.commit(batch, tokens(batch), zeros).map(p => [p.id, p.end])
    expect(ends).toEqual([
      ['stops', 'stop'],
      ['runs', 'length'],
    ])
  })

  it('forms the same batch again when a step failed', () => {
    const { scheduler: s } = scheduler(20)
    s.add(request('a', 5, 3))
    const shape = (b: LocalBatch) => b.slices.map(x => [x.state.id, x.from, x.count, x.sample, [...x.state.pages]])
    expect(shape(s.form(0))).toEqual(shape(s.form(0)))
  })

  it('serves any mix of requests and aborts to the end within its limits', () => {
    const arrival = fc.record({
      prompt: fc.integer({ min: 1, max: 25 }),
      maxTokens: fc.integer({ min: 0, max: 10 }),
      wantLogits: fc.boolean(),
      abortAfter: fc.option(fc.integer({ min: 0, max: 12 })),
    })
    fc.assert(
      fc.property(fc.array(arrival, { maxLength: 14 }), fc.integer({ min: 1, max: 9 }), (arrivals, chunk) => {
        const { scheduler: s, pool, limits } = scheduler(12, { chunkedPrefillSize: chunk })
        const drawn = new Map<string, number>()
        const logits = new Map<string, number>()
        const ended = new Set<string>()
        const aborted = new Set<string>()
        arrivals.forEach(({ prompt, maxTokens, wantLogits }, i) => {
          s.add(request(`${i}`, prompt, wantLogits ? 0 : Math.max(1, maxTokens), { wantLogits }))
        })
        for (let step = 0; step < 2000; step++) {
          arrivals.forEach(({ abortAfter }, i) => {
            if (abortAfter === step && !ended.has(`${i}`)) expect(s.abort(`${i}`)).toBe(true)
            if (abortAfter === step && !ended.has(`${i}`)) aborted.add(`${i}`)
          })
          const batch = s.form(0)
          if (batch.tokens === 0) {
            if (step > 12) break
            continue
          }
          const decodes = batch.slices.filter(x => x.from >= x.state.request.inputIds.length).length
          expect(batch.tokens - decodes).toBeLessThanOrEqual(limits.chunkedPrefillSize)
          expect(batch.slices.length).toBeLessThanOrEqual(limits.maxRunningRequests)
          expect(batch.logitRows).toBeLessThanOrEqual(limits.logitRows)
          const pages = batch.slices.flatMap(x => x.state.pages)
          expect(new Set(pages).size).toBe(pages.length)
          for (const p of s.commit(batch, tokens(batch), zeros)) {
            if (p.token !== null) drawn.set(p.id, (drawn.get(p.id) ?? 0) + 1)
            else logits.set(p.id, (logits.get(p.id) ?? 0) + p.logitRows)
            if (p.end) ended.add(p.id)
          }
        }
        arrivals.forEach(({ prompt, maxTokens, wantLogits }, i) => {
          const id = `${i}`
          expect(ended.has(id) !== aborted.has(id)).toBe(true)
          if (aborted.has(id)) return
          if (wantLogits) expect(logits.get(id)).toBe(prompt)
          else expect(drawn.get(id)).toBe(Math.max(1, maxTokens))
        })
        expect(pool.usedTokens).toBe(0)
        expect(pool.reserve(pool.pages)).toBe(true)
      }),
    )
  })
})
