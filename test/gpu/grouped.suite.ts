// Grouped products of one variant of the kernel against float64 sums: ragged tiles, tiles of no group, tails of every size, more
// tiles than blocks.
import { describe, expect, it } from 'vitest'
import {
  bindGroupedGemm,
  type GroupedVariant,
  mostTileRows,
  rowsOfTile,
} from '../../src/device/cuda/ops/grouped-gemm.js'
import { bf16Value, expectWithin, openGpu, product, storeBound, UNTOUCHED } from './gemm.suite.js'

interface Case {
  readonly name: string
  /** Rows of each group, in order; a negative number leaves that many rows to no group. */
  readonly rows: readonly number[]
  readonly n: number
  readonly k: number
  readonly gated?: boolean
  /** Groups begin at multiples of this. */
  readonly align?: number
}

const CASES: readonly Case[] = [
  { name: 'one tile, one column tile', rows: [128], n: 256, k: 64 },
  { name: 'k longer than the ring', rows: [128], n: 256, k: 640 },
  { name: 'a tail of k, of n and of rows', rows: [77], n: 264, k: 200 },
  { name: 'ragged groups, not aligned', rows: [1, 130, 0, 300, 17], n: 136, k: 136 },
  { name: 'aligned groups with tiles of no group', rows: [100, -128, 256, 40], n: 512, k: 192, align: 128 },
  { name: 'more tiles than blocks', rows: [900, 1000, 37, 1500, 128, 700], n: 1024, k: 72 },
  { name: 'large tiles after each other', rows: [285, 279, 60, 288, 201, 280, 8, 270], n: 4096, k: 72 },
  {
    name: 'gated, tiles of all lengths after each other',
    rows: [285, 12, 279, 60, 190, 30, 250],
    n: 3072,
    k: 136,
    gated: true,
  },
  { name: 'gated', rows: [128, 5], n: 128, k: 128, gated: true },
  {
    name: 'every width of a tile',
    rows: [16, 32, 33, 64, 100, 150, 176, 190, 200, 224, 240, 256, 272, 288, 289, 320],
    n: 128,
    k: 192,
  },
  {
    name: 'gated, every width of a tile',
    rows: [7, 176, 190, 208, 224, 240, 256, 272, 288, 304, 320],
    n: 64,
    k: 136,
    gated: true,
  },
  { name: 'gated, tails', rows: [1, 130, 0, 300, 17], n: 72, k: 264, gated: true },
  { name: 'gated, more tiles than blocks', rows: [600, 1000, 37, 900, 128, 700], n: 768, k: 64, gated: true },
]

export function groupedSuite(variant: GroupedVariant): void {
  const gpu = openGpu()

  describe(`grouped products, ${variant}`, () => {
    it.each(CASES)('$name', ({ rows, n, k, gated = false, align = 1 }) => {
      const tiles: [number, number, number, number][] = []
      const groupOf: number[] = []
      let at = 0
      rows.forEach((count, g) => {
        at = Math.ceil(at / align) * align
        const end = at + Math.abs(count)
        for (let r = at; r < end; r++) groupOf[r] = count < 0 ? -1 : g
        const each = rowsOfTile(end - at, mostTileRows(variant))
        for (; at < end; at += each) tiles.push([count < 0 ? -1 : g, at, Math.min(each, end - at), 0])
        at = end
      })
      const total = at
      const x = gpu.bf16(1, total, k, Math.ceil(k / 8) * 8 + 8)
      const w = gpu.matrix(2, gated ? 2 * n : n, k, rows.length)
      const stride = n + 8
      const out = gpu.address(gpu.untouched((total + 1) * stride))
      // A record more than counts: nobody may look at it.
      const records = gpu.ints([...tiles, [0, 0, 128, 0]].flat())
      const run = bindGroupedGemm(gpu.kernels, {
        x: { address: x.address, stride: x.stride, rows: total },
        weight: w,
        out: { address: out, stride },
        gated,
        tiles: records,
        tileCount: gpu.ints([tiles.length]),
        maxTiles: tiles.length + 3,
        variant,
      })
      run()
      const got = gpu.read(new Uint16Array((total + 1) * stride), out)
      const thin = [1, 13, 131, 1301].find(by => total * n * k < 3e7 * by) ?? 13001
      for (let r = 0; r <= total; r++) {
        const group = groupOf[r] ?? -1
        for (let c = 0; c < stride; c++) {
          const bits = got[r * stride + c]!
          if (group < 0 || c >= n) {
            if (bits !== UNTOUCHED) expect.fail(`row ${r}, column ${c} was written`)
            continue
          }
          // All of small results, a spread of large ones: some 2 million products.
          if ((r * 31 + c * 17) % thin !== 0) continue
          const { want, bound } = product(x, r, w, group, c, gated)
          expectWithin(bf16Value(bits), want, bound + storeBound(want), `row ${r}, column ${c}`)
        }
      }
      // Again into the same memory: a launch leaves nothing behind that the next one trips over.
      run()
      expect(gpu.read(new Uint16Array(got.length), out)).toEqual(got)
    })
  })
}
