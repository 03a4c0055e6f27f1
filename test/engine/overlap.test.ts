// Steps that overlap: a step is formed while the last one's draws are not known, as on a device that runs ahead of its rank.
// On the CPU nothing runs ahead, so what is shown here is that ids by row and late results change no bit.
import { describe, expect, it } from 'vitest'
import { OneThreadEngine, type OneThreadResult } from '../../src/engine/one-thread.js'
import { CounterRandom, STREAM } from '../../src/runtime/random.js'
import type { RankRequest } from '../../src/scheduler/index.js'
import { bitsOf, drawing, fixturePath, flagsFor, type GivenFlags, wantingLogits } from './harness.js'

/** Prompts with common beginnings, some sampled, some that stop early, some that only work with every token known. */
function requestsOf(vocab: number, count: number, seed: number): RankRequest[] {
  const random = new CounterRandom(seed, STREAM.wakeOrder)
  const shared = Array.from({ length: 20 }, () => random.below(vocab))
  return Array.from({ length: count }, (_, i): RankRequest => {
    const own = Array.from({ length: 1 + random.below(12) }, () => random.below(vocab))
    const ids = random.below(3) === 0 ? [...shared.slice(0, 8 + random.below(13)), ...own] : own
    const sampling = random.below(2) === 0 ? { temperature: 0.9, seed: BigInt(i) } : {}
    const kind = random.below(8)
    if (kind === 0) return wantingLogits(`${i}`, ids)
    const request = drawing(`${i}`, ids, 1 + random.below(20), {
      ...sampling,
      ...(kind === 1 ? { frequencyPenalty: 0.5, repetitionPenalty: 1.2 } : {}),
    })
    if (kind === 2) return { ...request, topLogprobs: 3 }
    const endTokenIds = kind > 4 ? Array.from({ length: vocab / 8 }, () => random.below(vocab)) : []
    return { ...request, endTokenIds }
  })
}

const comparable = (results: ReadonlyMap<string, OneThreadResult>) =>
  [...results].map(([id, r]) => [id, r.tokens, r.logprobs, [...bitsOf(r.logits)]])

async function both(fixture: string, flags: GivenFlags) {
  const checked = flagsFor(fixturePath(fixture), flags)
  return {
    plain: await OneThreadEngine.load(checked),
    overlapping: await OneThreadEngine.load(checked, { overlap: true }),
  }
}

const LAYOUTS: readonly (readonly [string, string, GivenFlags])[] = [
  ['one rank', 'qwen3_moe', {}],
  ['one rank, chunks of 5', 'deepseek_v3', { chunkedPrefillSize: 5 }],
  ['attention over two ranks', 'deepseek_v2', { tpSize: 2 }],
  ['two attention-DP ranks of two', 'qwen3_moe', { tpSize: 4, attnDpSize: 2, epSize: 4 }],
]

describe('overlapping steps', () => {
  it.each(LAYOUTS)(
    '%s: %s gives the bits of steps one by one',
    async (_, fixture, flags) => {
      const { plain, overlapping } = await both(fixture, flags)
      expect([plain.plan.overlap, overlapping.plan.overlap]).toEqual([false, true])
      for (const seed of [1, 2]) {
        const requests = requestsOf(plain.plan.spec.vocabSize, 40, seed)
        const routes = requests.map((_r, i) => i % (flags.attnDpSize ?? 1))
        expect(comparable(overlapping.run(requests, routes, seed))).toEqual(
          comparable(plain.run(requests, routes, seed)),
        )
      }
    },
    120_000,
  )

  it('changes nothing when memory is so short that requests are put back', async () => {
    const short = { maxTotalTokens: 96, scheduleConservativeness: 0.01, pageSize: 4 }
    const { plain, overlapping } = await both('qwen3_moe', short)
    const requests = Array.from({ length: 12 }, (_, i) => drawing(`${i}`, [i + 1, 5, 6], 30))
    const routes = requests.map(() => 0)
    const expected = comparable(plain.run(requests, routes, 0))
    expect(comparable(overlapping.run(requests, routes, 0))).toEqual(expected)
    expect(overlapping.lastCounters.retractions).toBeGreaterThan(0)
  }, 120_000)

  it('is off where replicas of experts are chosen by the tokens before', async () => {
    const flags = flagsFor(fixturePath('qwen3_moe'), { tpSize: 3, attnDpSize: 3, epSize: 3, epNumRedundantExperts: 1 })
    const engine = await OneThreadEngine.load(flags, { overlap: true })
    expect(engine.plan.placement!.maxReplicas).toBeGreaterThan(1)
    expect(engine.plan.overlap).toBe(false)
  })
})
