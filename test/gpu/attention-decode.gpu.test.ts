// Split-KV decode of grouped heads (attention_decode.cu): parts, windows, sinks, odd groups, pages of any size.
import { describe } from 'vitest'
import { attentionCases, run } from './attention.suite.js'

const qwen = { heads: 32, kvHeads: 4, qkWidth: 128, vWidth: 128, pageSize: 16, decodeOnly: true }

/** A batch of single rows with contexts from 1 to about `longest`. */
const single = (count: number, longest: number): [number, number][] =>
  Array.from({ length: count }, (_, s) => [s, (s * 7919 + 512) % longest])

const parts = (splits: number, minTiles: number) => ({ cut: (rows: number) => ({ items: rows, splits, minTiles }) })

describe('decode', () => {
  attentionCases([
    { ...qwen, name: 'one row', rows: [[0, 511]] },
    { ...qwen, name: 'one row, one key', rows: [[0, 0]] },
    { ...qwen, name: 'one long row', rows: [[0, 4999]] },
    { ...qwen, name: '32 rows', rows: single(32, 700) },
    { ...qwen, name: '128 rows', rows: single(128, 600) },
    { ...qwen, name: '300 rows, one of them long', rows: [...single(299, 100), [299, 2500]] },
    { ...qwen, name: 'no parts', rows: single(9, 500), options: parts(1, 1) },
    { ...qwen, name: 'more parts than tiles', rows: single(9, 500), options: parts(32, 1) },
    { ...qwen, name: 'parts of three tiles', rows: single(9, 900), options: parts(5, 3) },
    { ...qwen, name: 'pages of one', pageSize: 1, rows: single(5, 300) },
    { ...qwen, name: 'pages of 7', pageSize: 7, rows: single(5, 300) },
    { ...qwen, name: 'pages of 128', pageSize: 128, rows: single(5, 300) },
    { ...qwen, name: 'window and sinks', window: 200, sinks: true, rows: single(8, 900) },
    {
      ...qwen,
      name: 'padding',
      rows: [
        [0, 90],
        [-1, 4],
        [1, 33],
        [0, -1],
        [-1, -1],
        [0, 0],
      ],
    },
    { ...qwen, name: '40 rows of one sequence each taken alone', rows: run(0, 80, 40) },
    { ...qwen, name: 'one head a group', heads: 4, rows: single(6, 300) },
    { ...qwen, name: 'seven heads a group', heads: 28, rows: single(6, 300) },
    { ...qwen, name: 'forty heads a group', heads: 40, kvHeads: 1, rows: single(6, 300) },
    { ...qwen, name: 'heads of 64', heads: 16, kvHeads: 2, qkWidth: 64, vWidth: 64, rows: single(30, 700) },
  ])
})
