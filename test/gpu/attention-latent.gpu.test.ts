// Absorbed MLA (attention_latent.cu): 16 heads or fewer, 64 and more, decode and prompts.
import { describe } from 'vitest'
import { attentionCases, run } from './attention.suite.js'

const latent = { kvHeads: 1, qkWidth: 576, vWidth: 512, pageSize: 16 }
const parts = (splits: number, minTiles: number) => ({ cut: (rows: number) => ({ items: rows, splits, minTiles }) })
const single = (count: number, longest: number): [number, number][] =>
  Array.from({ length: count }, (_, s) => [s, (s * 7919 + 300) % longest])

describe('latent attention', () => {
  attentionCases([
    { ...latent, name: '16 heads, one row', heads: 16, rows: [[0, 511]] },
    { ...latent, name: '16 heads, 40 rows', heads: 16, rows: single(40, 400) },
    { ...latent, name: '16 heads, not cut', heads: 16, rows: single(5, 400), options: parts(1, 1) },
    { ...latent, name: '16 heads, a prompt and padding', heads: 16, rows: [...run(0, 0, 80), [-1, 0], [1, 33]] },
    { ...latent, name: '5 heads, window and sinks', heads: 5, window: 90, sinks: true, rows: single(6, 300) },
    { ...latent, name: '128 heads, one row', heads: 128, rows: [[0, 511]] },
    {
      ...latent,
      name: '128 heads, 8 rows, parts of two tiles',
      heads: 128,
      rows: single(8, 500),
      options: parts(4, 2),
    },
    { ...latent, name: '128 heads, a chunk', heads: 128, rows: run(0, 100, 30) },
    { ...latent, name: '70 heads, pages of 7', heads: 70, pageSize: 7, rows: single(4, 300) },
  ])
})
