// How long prompts are held back for other ranks.
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { PrefillDelayer } from './index.js'

const mixed = [true, false]

describe('PrefillDelayer', () => {
  it('waits for the others, and goes when they have prompts too', () => {
    const delayer = new PrefillDelayer(5)
    expect([1, 2].map(() => delayer.mayPrefill(true, true, mixed))).toEqual([false, false])
    expect(delayer.mayPrefill(true, true, [true, true])).toBe(true)
    expect(delayer.outcomes).toMatchObject({ delay: 2, wait_success: 1 })
  })

  it('gives up after its bound, and does not wait again while ranks still differ', () => {
    const delayer = new PrefillDelayer(3)
    expect(Array.from({ length: 6 }, () => delayer.mayPrefill(true, true, mixed))).toEqual([
      false,
      false,
      false,
      true,
      true,
      true,
    ])
    expect(delayer.mayPrefill(false, true, [false, false])).toBe(true)
    expect(delayer.mayPrefill(true, true, mixed)).toBe(false)
  })

  it('never keeps a rank idle, and never waits when off', () => {
    expect(new PrefillDelayer(9).mayPrefill(true, false, mixed)).toBe(true)
    expect(new PrefillDelayer(0).mayPrefill(true, true, mixed)).toBe(true)
  })

  it('never delays more than its bound in a row', () => {
    const pass = fc.tuple(fc.boolean(), fc.boolean(), fc.array(fc.boolean(), { minLength: 2, maxLength: 4 }))
    fc.assert(
      fc.property(fc.integer({ min: 0, max: 6 }), fc.array(pass, { maxLength: 60 }), (bound, passes) => {
        const delayer = new PrefillDelayer(bound)
        let row = 0
        for (const [hasPrefill, hasDecode, others] of passes) {
          row = delayer.mayPrefill(hasPrefill, hasDecode, others) ? 0 : row + 1
          expect(row).toBeLessThanOrEqual(bound)
        }
      }),
    )
  })
})
