// Scheduling ahead of the device: forming a step before the last one's results are known changes no token.
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { PagePool } from '../kvcache/index.js'
import { type LocalBatch, type RankRequest, rowOfDraw, Scheduler } from './index.js'

const PAGE = 4
const PAGES = 14

interface Case {
  readonly prompt: readonly number[]
  readonly maxTokens: number
  readonly stop: boolean
  readonly priority: number
  readonly arrives: number
  readonly abortAfter: number | null
}

const request = (id: string, c: Case): RankRequest => ({
  id,
  inputIds: Int32Array.from(c.prompt),
  maxTokens: c.maxTokens,
  temperature: 0,
  topP: 1,
  topK: 0,
  minP: 0,
  seedLow: 0,
  seedHigh: 0,
  // One in seven draws of the model below ends such a request.
  endTokenIds: c.stop ? [3] : [],
  wantLogits: false,
  isHealthCheck: false,
  priority: c.priority,
})

/** A model that keeps what it computed by page, as a device does: it reads the tokens of the batch's rows only. */
class Model {
  readonly #slots = new Int32Array(PAGES * PAGE).fill(-1)
  #before: Int32Array = new Int32Array(0)

  /** Runs a batch; ids not known yet are those that the last batch drew. */
  run(batch: LocalBatch): Int32Array {
    const drawn: number[] = []
    for (const { state, from, count, sample } of batch.slices) {
      const slot = (position: number) => state.pages[Math.floor(position / PAGE)]! * PAGE + (position % PAGE)
      for (let p = from; p < from + count; p++) {
        const token = state.tokens[p]!
        this.#slots[slot(p)] = token < 0 ? this.#before[rowOfDraw(token)]! : token
      }
      let hash = 7
      for (let p = 0; p < from + count; p++) hash = (hash * 31 + this.#slots[slot(p)]!) % 1009
      if (sample) drawn.push(hash % 7)
    }
    this.#before = Int32Array.from(drawn)
    return this.#before
  }
}

interface Setting {
  readonly chunkedPrefillSize: number
  readonly prefixCache: boolean
  readonly prefillDecodeInterval: number
  readonly conservativeness: number
}

function serve(cases: readonly Case[], setting: Setting, ahead: boolean) {
  const pool = new PagePool(PAGES, PAGE)
  const s = new Scheduler(pool, { maxRunningRequests: 4, logitRows: 4, ...setting })
  const model = new Model()
  const tokens = new Map<string, number[]>()
  const ends = new Map<string, string>()
  const zeros = new Float32Array(8)
  let flight: { batch: LocalBatch; sampled: Int32Array } | null = null
  let stepsAhead = 0
  const settle = () => {
    if (!flight) return
    for (const p of s.resolve(flight.batch, flight.sampled, zeros)) {
      if (p.token !== null) tokens.set(p.id, [...(tokens.get(p.id) ?? []), p.token])
      if (p.end) ends.set(p.id, p.end)
    }
    flight = null
  }
  for (let step = 0; step < 2000; step++) {
    cases.forEach((c, i) => {
      if (c.arrives === step) s.add(request(`${i}`, c))
      if (c.abortAfter !== null && c.arrives + c.abortAfter === step && s.abort(`${i}`)) ends.set(`${i}`, 'aborted')
    })
    let batch: LocalBatch | null = flight ? s.formAhead(step) : s.form(step)
    if (batch === null) {
      settle()
      batch = s.form(step)
    } else if (flight) stepsAhead++
    for (const { state, from, count } of batch.slices) {
      expect(state.pages.length * PAGE).toBeGreaterThanOrEqual(from + count)
      expect(state.ended).toBe(false)
    }
    const own = batch.slices.flatMap(x => x.state.pages.slice(x.state.path.length))
    expect(new Set(own).size).toBe(own.length)
    if (batch.tokens === 0) {
      if (step > 40) break
      continue
    }
    const sampled = model.run(batch)
    settle()
    s.assume(batch)
    flight = { batch, sampled }
    if (!ahead) settle()
  }
  settle()
  expect(s.usedTokens).toBe(0)
  s.flushCache()
  expect(pool.freePages).toBe(PAGES)
  return { tokens, ends, stepsAhead, counters: s.counters }
}

const arrival: fc.Arbitrary<Case> = fc.record({
  prompt: fc.array(fc.integer({ min: 0, max: 3 }), { minLength: 1, maxLength: 25 }),
  maxTokens: fc.integer({ min: 0, max: 14 }),
  stop: fc.boolean(),
  priority: fc.integer({ min: -1, max: 1 }),
  arrives: fc.integer({ min: 0, max: 20 }),
  abortAfter: fc.constant(null),
})
const setting: fc.Arbitrary<Setting> = fc.record({
  chunkedPrefillSize: fc.integer({ min: 1, max: 9 }),
  prefixCache: fc.boolean(),
  prefillDecodeInterval: fc.integer({ min: 0, max: 2 }),
  conservativeness: fc.constantFrom(0.01, 0.3, 1),
})

describe('scheduling ahead', () => {
  it('gives the tokens and ends of scheduling with every result known', () => {
    fc.assert(
      fc.property(fc.array(arrival, { maxLength: 12 }), setting, (cases, chosen) => {
        const [plain, ahead] = [serve(cases, chosen, false), serve(cases, chosen, true)]
        expect(ahead.tokens).toEqual(plain.tokens)
        expect(ahead.ends).toEqual(plain.ends)
        expect(plain.stepsAhead).toBe(0)
      }),
      { numRuns: 400 },
    )
  })

  it('survives aborts at any step: what is reported is a beginning of the whole', () => {
    const aborting = arrival.chain(c => fc.record({ c: fc.constant(c), after: fc.integer({ min: 0, max: 12 }) }))
    fc.assert(
      fc.property(fc.array(aborting, { maxLength: 10 }), setting, (given, chosen) => {
        const whole = serve(
          given.map(g => g.c),
          chosen,
          false,
        ).tokens
        const cases = given.map(({ c, after }) => ({ ...c, abortAfter: after }))
        const { tokens, ends } = serve(cases, chosen, true)
        cases.forEach((_, i) => {
          const [got, all] = [tokens.get(`${i}`) ?? [], whole.get(`${i}`) ?? []]
          expect(got).toEqual(all.slice(0, got.length))
          if (ends.get(`${i}`) !== 'aborted') expect(got).toEqual(all)
        })
      }),
      { numRuns: 300 },
    )
  })

  it('is ahead in nearly every step of a long run', () => {
    const cases = [0, 1, 2].map(i => ({
      prompt: [i, 2],
      maxTokens: 12,
      stop: false,
      priority: 0,
      arrives: 0,
      abortAfter: null,
    }))
    const usual = { chunkedPrefillSize: 8, prefixCache: true, prefillDecodeInterval: 0, conservativeness: 1 }
    expect(serve(cases, usual, true).stepsAhead).toBeGreaterThanOrEqual(11)
  })

  it('knows the results first when a request must be put back', () => {
    const cases = Array.from({ length: 4 }, (_, i) => ({
      prompt: [i, 1, 2],
      maxTokens: 14,
      stop: false,
      priority: 0,
      arrives: 0,
      abortAfter: null,
    }))
    const tight = { chunkedPrefillSize: 8, prefixCache: false, prefillDecodeInterval: 0, conservativeness: 0.01 }
    const [plain, ahead] = [serve(cases, tight, false), serve(cases, tight, true)]
    expect(ahead.counters.retractions).toBeGreaterThan(0)
    expect(ahead.tokens).toEqual(plain.tokens)
  })
})
