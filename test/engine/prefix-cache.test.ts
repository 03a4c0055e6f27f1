// What the prefix cache saves and what a pool far too small costs: work, never a bit of the result.
import { describe, expect, it } from 'vitest'
import { engineFlags } from '../../src/config/flags.js'
import { OneThreadEngine } from '../../src/engine/one-thread.js'
import { drawing } from './harness.js'

const model = {
  modelPath: 'test/fixtures/checkpoints/deepseek_v3',
  dtype: 'float32',
  jsonModelOverrideArgs: { max_position_embeddings: 2048 },
} as const
const ids = (length: number, seed: number): number[] =>
  Array.from({ length }, (_, i) => (i * 31 + seed * 17 + ((i * seed) % 7)) % 150)

describe('prefix cache', () => {
  it('computes a prompt that 100 requests share once a DP rank, with the same text', async () => {
    const shared = ids(1000, 1)
    const requests = Array.from({ length: 100 }, (_, i) => drawing(`${i}`, [...shared, ...ids(32, i + 2)], 4))
    const routes = requests.map((_, i) => i % 2)
    const run = async (disableRadixCache: boolean) => {
      const flags = engineFlags({
        ...model,
        tpSize: 2,
        attnDpSize: 2,
        epSize: 2,
        maxTotalTokens: 40_000,
        disableRadixCache,
      })
      const engine = await OneThreadEngine.load(flags)
      const results = engine.run(requests, routes, 1)
      return { results, ...engine.lastCounters }
    }
    const [cached, plain] = [await run(false), await run(true)]
    expect(plain.prefilledTokens).toBe(100 * 1032)
    expect(cached.prefilledTokens * 10).toBeLessThanOrEqual(plain.prefilledTokens)
    expect(cached.cachedTokens + cached.prefilledTokens).toBeGreaterThanOrEqual(plain.prefilledTokens)
    for (const [id, { tokens, logprobs }] of plain.results) {
      expect(cached.results.get(id)!.tokens).toEqual(tokens)
      expect(cached.results.get(id)!.logprobs).toEqual(logprobs)
    }
    console.log(`prefilled ${cached.prefilledTokens} of ${plain.prefilledTokens} prompt tokens`)
  }, 120_000)
})

describe('a KV pool a tenth of the need', () => {
  it('finishes all requests with the bits of a large pool', async () => {
    const requests = Array.from({ length: 24 }, (_, i) => drawing(`${i}`, ids(20 + ((i * 13) % 60), i), 60))
    const routes = requests.map((_, i) => i % 2)
    const need = requests.reduce((sum, r) => sum + r.inputIds.length + r.maxTokens, 0) / 2
    const run = async (maxTotalTokens: number, disableRadixCache: boolean) => {
      const flags = {
        ...model,
        tpSize: 2,
        attnDpSize: 2,
        epSize: 2,
        maxTotalTokens,
        disableRadixCache,
        scheduleConservativeness: 0.05,
      }
      const engine = await OneThreadEngine.load(engineFlags(flags))
      return { results: engine.run(requests, routes, 1), retractions: engine.lastCounters.retractions }
    }
    const roomy = await run(20_000, true)
    expect(roomy.retractions).toBe(0)
    for (const disableRadixCache of [true, false]) {
      const tight = await run(Math.ceil(need / 10), disableRadixCache)
      expect(tight.retractions).toBeGreaterThan(0)
      for (const [id, { tokens, logprobs }] of roomy.results) {
        expect(tight.results.get(id)!.tokens).toEqual(tokens)
        expect(tight.results.get(id)!.logprobs).toEqual(logprobs)
      }
    }
  }, 120_000)
})
