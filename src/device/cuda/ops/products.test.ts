// How products of few rows and routed experts are laid out, without a GPU.
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { layOutScratch } from './experts-fast.js'
import { gemvSplit } from './gemv.js'
import { maxTilesOf, mostTileRows, rowsOfTile } from './grouped-gemm.js'
import { planSkinny, type SkinnySize } from './skinny.js'

const H200 = { sms: 132, sharedBytesPerBlock: 232448 }
const qwen: SkinnySize = { ...H200, count: 8, experts: 128, mode: 'routed', n: 768, k: 2048, gated: true }

describe('planSkinny', () => {
  it('takes rows by their number, and by their mean where ids route them', () => {
    const capacity = (size: Partial<SkinnySize>) => planSkinny({ ...qwen, ...size })?.capacity
    expect([8, 256, 512, 1024, 1536].map(count => capacity({ count }))).toEqual([8, 8, 16, 16, 32])
    expect([1, 8, 9, 17, 64].map(count => capacity({ count, mode: 'dense', experts: 1 }))).toEqual([8, 8, 16, 32, 32])
  })

  it('takes fewer rows at once where long rows leave the ring no room, and refuses what leaves none', () => {
    const dense = { ...qwen, mode: 'dense', experts: 1, gated: false, count: 32 } as const
    expect(planSkinny({ ...dense, k: 2048 })?.capacity).toBe(32)
    expect(planSkinny({ ...dense, k: 4096 })?.capacity).toBe(16)
    expect(planSkinny({ ...dense, k: 7168 })?.capacity).toBe(8)
    expect(planSkinny({ ...dense, k: 16384 })).toBeUndefined()
    expect(planSkinny({ ...dense, k: 2056 })).toBeUndefined()
  })

  it('halves units where that fills the last round of blocks better', () => {
    const dense = { ...qwen, mode: 'dense', experts: 1, gated: false, count: 1 } as const
    // 320 units of 16 rows are 3 rounds of 132 blocks, 640 of 8 are 5: 48 rows of W a block against 40.
    expect(planSkinny({ ...dense, n: 5120 })?.tileRows).toBe(8)
    expect(planSkinny({ ...dense, n: 2048, k: 4096 })?.tileRows).toBe(16)
  })

  it('never asks for more shared memory than a block may have, and has room for all items', () => {
    const size = fc.record({
      count: fc.integer({ min: 1, max: 4096 }),
      experts: fc.integer({ min: 1, max: 512 }),
      mode: fc.constantFrom('dense', 'masked', 'routed'),
      n: fc.integer({ min: 1, max: 20000 }),
      k: fc.integer({ min: 1, max: 150 }).map(k => k * 64),
      gated: fc.boolean(),
    })
    fc.assert(
      fc.property(size, fc.array(fc.nat(511), { maxLength: 4096 }), (s, ids) => {
        const plan = planSkinny({ ...H200, ...s } as SkinnySize)
        if (plan === undefined) return
        expect(plan.sharedBytes).toBeLessThanOrEqual(H200.sharedBytesPerBlock)
        expect(plan.stages).toBeGreaterThanOrEqual(3)
        if (s.mode !== 'routed') return
        const counts = new Map<number, number>()
        for (const id of ids.slice(0, s.count)) counts.set(id % s.experts, (counts.get(id % s.experts) ?? 0) + 1)
        const items = [...counts.values()].reduce((sum, n) => sum + Math.ceil(n / plan.capacity), 0)
        expect(plan.itemsRoom).toBeGreaterThanOrEqual(items)
      }),
      { numRuns: 300, seed: 4 },
    )
  })

  it('fits fewer rows wherever it fits more', () => {
    fc.assert(
      fc.property(fc.integer({ min: 2, max: 4096 }), fc.nat(), fc.integer({ min: 1, max: 130 }), (most, less, k) => {
        const size = { ...qwen, k: 64 * k }
        if (planSkinny({ ...size, count: most }) === undefined) return
        expect(planSkinny({ ...size, count: 1 + (less % most) })).toBeDefined()
      }),
      { numRuns: 300, seed: 5 },
    )
  })
})

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
        for (const variant of ['columns', 'mma'] as const) {
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
