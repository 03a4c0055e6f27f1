// Prompts, chunks of prompts and mixed batches of grouped heads, for both kernels that take them.
import type { PromptKernel } from '../../src/device/cuda/ops/attention.js'
import { type AttentionCase, run } from './attention.suite.js'

const qwen = { heads: 32, kvHeads: 4, qkWidth: 128, vWidth: 128, pageSize: 16 }

export const promptCases = (prompts: PromptKernel): AttentionCase[] => CASES.map(c => ({ ...c, options: { prompts } }))

const CASES: readonly AttentionCase[] = [
  { ...qwen, name: 'a prompt', rows: run(0, 0, 300) },
  { ...qwen, name: 'a prompt of five', rows: run(0, 0, 5) },
  { ...qwen, name: 'two prompts', rows: [...run(0, 0, 77), ...run(1, 0, 130)] },
  { ...qwen, name: 'a chunk after a cached prefix', rows: run(0, 700, 100) },
  {
    ...qwen,
    name: 'prompts, chunks, single rows and padding',
    rows: [
      [0, 500],
      ...run(1, 0, 70),
      [2, 3],
      [3, 129],
      ...run(4, 250, 33),
      [-1, 0],
      [-1, 1],
      [-1, 2],
      ...run(5, 10, 2),
    ],
  },
  {
    ...qwen,
    name: '90 single rows and a prompt',
    rows: [...Array.from({ length: 90 }, (_, s) => [s, 5 * s] as const), ...run(90, 0, 40)],
  },
  {
    ...qwen,
    name: 'rows of one sequence out of order',
    rows: [...run(0, 100, 20), ...run(0, 40, 20), ...run(0, 0, 3)],
  },
  { ...qwen, name: 'a long prompt', heads: 8, kvHeads: 1, rows: run(0, 0, 1500) },
  { ...qwen, name: 'window and sinks', window: 100, sinks: true, rows: [...run(0, 0, 260), ...run(1, 300, 90)] },
  { ...qwen, name: 'a window of three', window: 3, rows: run(0, 0, 200) },
  { ...qwen, name: 'one head a group', heads: 4, rows: run(0, 0, 300) },
  { ...qwen, name: 'seven heads a group', heads: 28, rows: run(0, 0, 200) },
  { ...qwen, name: 'pages of 7', pageSize: 7, rows: run(0, 9, 200) },
  {
    ...qwen,
    name: 'heads of 64',
    heads: 16,
    kvHeads: 2,
    qkWidth: 64,
    vWidth: 64,
    rows: [...run(0, 0, 300), [1, 200]],
  },
]
