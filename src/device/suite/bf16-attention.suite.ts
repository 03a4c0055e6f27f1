// Attention of bf16 rows over a bf16 cache against float64: GQA and the latent form, with a derived bound.
import { it } from 'vitest'
import { at, fillInts, type Implementation, rowsOf, type TestRows } from './bench.suite.js'
import { ADDING, expectNear, get, halfRows, ROUNDING, randomHalf } from './half-rows.suite.js'

export function bf16AttentionSuite({ ops }: Implementation): void {
  it.each([
    [8, 2, 64, 64, false],
    [4, 4, 128, 128, false],
    [6, 1, 40, 32, true],
    [16, 1, 576, 512, true],
  ])('attention, %i heads, %i KV heads, widths %i and %i, latent %s', (heads, kvHeads, qkWidth, vWidth, latent) => {
    const pageSize = 16
    const lengths = [75, 1, 33]
    const valueOffset = latent ? 0 : kvHeads * qkWidth
    const width = latent ? qkWidth : valueOffset + kvHeads * vWidth
    const pages = lengths.map(l => Math.ceil(l / pageSize))
    const total = pages.reduce((a, b) => a + b, 0)
    const kv = randomHalf(1, total * pageSize, width)
    const table = fillInts(rowsOf(lengths.length, Math.max(...pages)), () => -7)
    let next = total
    pages.forEach((count, s) => {
      for (let p = 0; p < count; p++) table.i[at(table, s, p)] = --next
    })
    const rows = [[0, 74], [1, 0], ...Array.from({ length: 33 }, (_, p) => [2, p]), [0, 15], [-1, 3]] as [
      number,
      number,
    ][]
    const q = randomHalf(2, rows.length, heads * qkWidth, 8, 8, 3)
    const out = halfRows(rows.length, heads * vWidth)
    const scale = 1 / Math.sqrt(qkWidth)
    const batch = {
      rowSequence: fillInts(rowsOf(rows.length, 1), r => rows[r]![0]),
      positions: fillInts(rowsOf(rows.length, 1), r => rows[r]![1]),
      pageTable: table as TestRows,
      pageSize,
    }
    const sizes = { heads, kvHeads, qkWidth, vWidth, keyOffset: 0, valueOffset, scale }
    ops.attention({ out, q, kv, batch, ...sizes })(rows.length)
    const oracle = rows.map(([s, position], r) => {
      if (s < 0) return new Float64Array(2 * heads * vWidth)
      const slots = Array.from({ length: position + 1 }, (_, p) => {
        const page = table.i[at(table, s, Math.floor(p / pageSize))]!
        return page * pageSize + (p % pageSize)
      })
      const result = new Float64Array(2 * heads * vWidth)
      for (let h = 0; h < heads; h++) {
        const kvHead = Math.floor((h * kvHeads) / heads)
        const scores = slots.map(slot => {
          let dot = 0
          for (let c = 0; c < qkWidth; c++) dot += get(q, r, h * qkWidth + c) * get(kv, slot, kvHead * qkWidth + c)
          return dot * scale
        })
        const most = Math.max(...scores)
        const sum = scores.reduce((t, x) => t + Math.exp(x - most), 0)
        for (let c = 0; c < vWidth; c++)
          scores.forEach((x, i) => {
            const part = (Math.exp(x - most) / sum) * get(kv, slots[i]!, valueOffset + kvHead * vWidth + c)
            result[2 * (h * vWidth + c)]! += part
            result[2 * (h * vWidth + c) + 1]! += Math.abs(part)
          })
      }
      return result
    })
    // Scores are off by at most qkWidth · 2^-24 · Σ|q||k| · scale, and weights may be rounded to bf16 before they meet the values.
    const error = 2 * ROUNDING + 2 * qkWidth * ADDING * qkWidth * 3 * scale
    expectNear(
      out,
      (r, c) => oracle[r]![2 * c]!,
      (r, c) => error * oracle[r]![2 * c + 1]!,
    )
  })
}
