// Routing of requests to attention-DP ranks: each method, and its counts.
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { DpRouter } from './index.js'

const prompt = (length: number): Int32Array => Int32Array.from({ length }, (_, i) => i)

describe('DpRouter', () => {
  it('takes ranks in turn by default', () => {
    const router = new DpRouter('auto', 3)
    expect([1, 1, 1, 1].map(n => router.pick(prompt(n), undefined))).toEqual([0, 1, 2, 0])
  })

  it('spreads a burst at once by requests, and by tokens', () => {
    const requests = new DpRouter('total_requests', 3)
    expect([9, 1, 1, 1].map(n => requests.pick(prompt(n), undefined))).toEqual([0, 1, 2, 0])
    const tokens = new DpRouter('total_tokens', 3)
    expect([9, 1, 1, 1].map(n => tokens.pick(prompt(n), undefined))).toEqual([0, 1, 2, 1])
  })

  it('respects a rank that is asked for, and counts it', () => {
    const router = new DpRouter('total_requests', 2)
    expect(router.pick(prompt(5), 1)).toBe(1)
    expect(router.pick(prompt(5), undefined)).toBe(0)
  })

  it('breaks ties by the attention work of the last step', () => {
    const router = new DpRouter('total_tokens', 2)
    router.reported(0, 5000)
    router.reported(1, 10)
    expect(router.pick(prompt(3), undefined)).toBe(1)
  })

  it('never differs by more than one request under total_requests', () => {
    fc.assert(
      fc.property(
        fc.array(fc.nat(100), { minLength: 1, maxLength: 50 }),
        fc.integer({ min: 1, max: 8 }),
        (sizes, ranks) => {
          const router = new DpRouter('total_requests', ranks)
          const counts = new Array<number>(ranks).fill(0)
          for (const tokens of sizes) counts[router.pick(prompt(tokens), undefined)]!++
          expect(Math.max(...counts) - Math.min(...counts)).toBeLessThanOrEqual(1)
        },
      ),
    )
  })

  it('sends a prompt where its prefix is cached, unless that rank is much busier', () => {
    const router = new DpRouter('cache_aware', 2, 4)
    const first = router.pick(prompt(40), undefined)
    expect(first).toBe(0)
    expect(router.pick(prompt(40), undefined)).toBe(0)
    expect(router.pick([9, 9, 9, 9, 9], undefined)).toBe(1)
    for (let i = 0; i < 8; i++) router.pick(prompt(40), 0)
    expect(router.pick(prompt(40), undefined)).toBe(1)
  })

  it('forgets what has finished', () => {
    const router = new DpRouter('total_tokens', 2)
    router.pick(prompt(10), 0)
    router.drew(0, 5)
    router.finished(0, 15)
    router.pick(prompt(1), 1)
    expect(router.pick(prompt(1), undefined)).toBe(0)
  })
})
