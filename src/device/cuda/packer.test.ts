// How the sources of packing are cut into uploads.
import { describe, expect, it } from 'vitest'
import { chunksOf } from './packer.js'

describe('uploads', () => {
  it('cover every row and input once, within the stage', () => {
    for (const [n, k, strideN, strideK] of [
      [10, 7, 7, 1],
      [10, 7, 20, 1],
      [10, 7, 1, 10],
      [3, 50, 100, 2],
    ] as const) {
      const seen = new Map<number, number>()
      for (const c of chunksOf(n, k, { offset: 5, strideN, strideK }, 60)) {
        for (let i = c.first; i < c.first + c.rows; i++)
          for (let j = c.firstInput; j < c.firstInput + c.inputs; j++) {
            const element = 5 + i * strideN + j * strideK
            expect(element).toBeGreaterThanOrEqual(c.from)
            expect(element).toBeLessThan(c.to)
            seen.set(i * k + j, (seen.get(i * k + j) ?? 0) + 1)
          }
      }
      expect(seen.size).toBe(n * k)
      expect(Math.max(...seen.values())).toBe(1)
    }
  })
})
