// How products of few rows and routed experts are laid out, without a GPU.
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { layOutScratch } from './experts-fast.js'
import { gemvSplit } from './gemv.js'
import { maxTilesOf, mostTileRows, rowsOfTile } from './grouped-gemm.js'

describe('the scratch of sorted experts', () => {
  it('holds all parts, apart from each other, for every row the contract gives room for', () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 1, max: 20000 }),
        fc.integer({ min: 1, max: 8 }),
        fc.integer({ min: 1, max: 512 }).map(n => n * 8),
        fc.integer({ min: 1, max: 256 }).map(n => n * 8),
        fc.integer({ min: 1, max: 512 }),
        (rows, topK, hidden, inter, experts) => {
          const bytes = rows * topK * (3 * inter + hidden) * 2
          const at = layOutScratch(bytes, { hidden, inter, experts })
          expect(at.slots).toBe(rows * topK)
          if (!at.fits) return
          const ends = [
            [at.rows, at.slots * hidden * 2],
            [at.inner, at.slots * inter * 2],
            [at.place, at.slots * 4],
            [at.within, at.slots * 2],
            [at.before, Math.ceil(at.slots / 1024) * experts * 4],
            [at.tiles, maxTilesOf(at.slots, experts, 'mma') * 16],
          ] as const
          ends.forEach(([begin, size], i) => {
            expect(begin % 256).toBe(0)
            expect(begin + size).toBeLessThanOrEqual(ends[i + 1]?.[0] ?? bytes)
          })
        },
      ),
      { numRuns: 300, seed: 6 },
    )
  })

  it('suffices for Qwen3-30B-A3B from few rows on', () => {
    const fits = (rows: number) =>
      layOutScratch(rows * 8 * (3 * 768 + 2048) * 2, { hidden: 2048, inter: 768, experts: 128 }).fits
    expect([1, 4, 32, 16384].map(fits)).toEqual([true, true, true, true])
  })

  it('counts the tiles of the worst spread', () => {
    fc.assert(
      fc.property(fc.array(fc.nat(9000), { minLength: 1, maxLength: 40 }), counts => {
        const slots = counts.reduce((a, b) => a + b, 0)
        for (const variant of ['sm90', 'mma'] as const) {
          const each = counts.map(n => rowsOfTile(n, mostTileRows(variant)))
          expect(Math.max(...each)).toBeLessThanOrEqual(mostTileRows(variant))
          const tiles = counts.reduce((sum, n, g) => sum + Math.ceil(n / each[g]!), 0)
          expect(maxTilesOf(slots, counts.length, variant)).toBeGreaterThanOrEqual(tiles)
        }
      }),
    )
  })
})

describe('gemvSplit', () => {
  it('gives each warp what it asks for at once, and small matrices more warps', () => {
    const split = (n: number, k: number) => gemvSplit(n, k, 132)
    expect([split(5120, 2048), split(2048, 4096), split(128, 2048), split(12288, 2048), split(5120, 768)]).toEqual([
      2, 4, 4, 2, 1,
    ])
  })
})
