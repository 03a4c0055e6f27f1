import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { DpRouter } from './index.js'

describe('DpRouter', () => {
  it('takes ranks in turn by default', () => {
    const router = new DpRouter('auto', 3)
    expect([1, 1, 1, 1].map(n => router.pick(n, undefined))).toEqual([0, 1, 2, 0])
  })

  it('spreads a burst at once by requests, and by tokens', () => {
    const requests = new DpRouter('total_requests', 3)
    expect([9, 1, 1, 1].map(n => requests.pick(n, undefined))).toEqual([0, 1, 2, 0])
    const tokens = new DpRouter('total_tokens', 3)
    expect([9, 1, 1, 1].map(n => tokens.pick(n, undefined))).toEqual([0, 1, 2, 1])
  })

  it('respects a rank that is asked for, and counts it', () => {
    const router = new DpRouter('total_requests', 2)
    expect(router.pick(5, 1)).toBe(1)
    expect(router.pick(5, undefined)).toBe(0)
  })

  it('breaks ties by the attention work of the last step', () => {
    const router = new DpRouter('total_tokens', 2)
    router.reported(0, 5000)
    router.reported(1, 10)
    expect(router.pick(3, undefined)).toBe(1)
  })

  it('never differs by more than one request under total_requests', () => {
    fc.assert(
      fc.property(
        fc.array(fc.nat(100), { minLength: 1, maxLength: 50 }),
        fc.integer({ min: 1, max: 8 }),
        (sizes, ranks) => {
          const router = new DpRouter('total_requests', ranks)
          const counts = new Array<number>(ranks).fill(0)
          for (const tokens of sizes) counts[router.pick(tokens, undefined)]!++
          expect(Math.max(...counts) - Math.min(...counts)).toBeLessThanOrEqual(1)
        },
      ),
    )
  })

  it('forgets what has finished', () => {
    const router = new DpRouter('total_tokens', 2)
    router.pick(10, 0)
    router.drew(0, 5)
    router.finished(0, 15)
    router.pick(1, 1)
    expect(router.pick(1, undefined)).toBe(0)
  })
})
