import { describe, expect, it } from 'vitest'
import { stepsOf } from './rope.js'

describe('groups of heads a warp takes', () => {
  const GROUPS = 10 // 40 heads of 128, four at once

  it('one while there are few rows, all of a row when there are many', () => {
    expect([1, 32, 128].map(rows => stepsOf(rows, GROUPS, 132))).toEqual([1, 1, 1])
    expect(stepsOf(1024, GROUPS, 132)).toBe(2)
    expect(stepsOf(16_384, GROUPS, 132)).toBe(GROUPS)
  })

  it('never none and never more than a row has', () => {
    for (const rows of [1, 7, 900, 5000, 100_000])
      for (const groups of [1, 3, 10]) {
        const steps = stepsOf(rows, groups, 108)
        expect(Number.isInteger(steps) && steps >= 1 && steps <= groups).toBe(true)
      }
  })
})
