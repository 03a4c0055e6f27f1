import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { PagePool } from './index.js'

describe('PagePool', () => {
  it('refuses a reservation that free pages do not cover', () => {
    const pool = new PagePool(4, 16)
    expect(pool.reserve(3)).toBe(true)
    expect(pool.reserve(2)).toBe(false)
    pool.take()
    pool.unreserve(2)
    expect(pool.reserve(3)).toBe(true)
  })

  it('never hands out a page twice and gets all of them back', () => {
    fc.assert(
      fc.property(fc.array(fc.integer({ min: 1, max: 5 }), { maxLength: 40 }), needs => {
        const pool = new PagePool(12, 8)
        const held: number[][] = []
        for (const need of needs) {
          if (!pool.reserve(need)) {
            const oldest = held.shift()
            if (oldest) pool.release(oldest)
            continue
          }
          held.push(Array.from({ length: need }, () => pool.take()))
          const out = held.flat()
          expect(new Set(out).size).toBe(out.length)
        }
        for (const pages of held) pool.release(pages)
        expect(pool.usedTokens).toBe(0)
        expect(pool.reserve(12)).toBe(true)
      }),
    )
  })

  it('notices a page released twice', () => {
    const pool = new PagePool(1, 1)
    expect(() => pool.release([0])).toThrow(/released twice/)
  })
})
