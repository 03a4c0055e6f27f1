import { expect, it } from 'vitest'
import { attentionCost } from './attention.js'

it('counts what attention must read and compute', () => {
  const model = { heads: 32, kvHeads: 4, qkWidth: 128, vWidth: 128 }
  const single = { context: 512, rows: 1 }
  // 128 single rows: 512 positions of 2 * 4 * 128 bf16 each, queries and results of 32 * 128.
  const decode = attentionCost({ shape: '', model, batch: new Array(128).fill(single) })
  expect(decode.bytes).toBe(128 * (512 * 2048 + 2 * 8192))
  expect(decode.flop).toBe(128 * 512 * 32 * 4 * 128)
  // A prompt of 3 sees 1 + 2 + 3 positions; 2 rows after 1 see 2 + 3.
  const prompt = (context: number, rows: number) => attentionCost({ shape: '', model, batch: [{ context, rows }] }).flop
  expect(prompt(3, 3)).toBe(6 * 32 * 4 * 128)
  expect(prompt(3, 2)).toBe(5 * 32 * 4 * 128)
  const latent = { heads: 128, kvHeads: 1, qkWidth: 576, vWidth: 512 }
  expect(attentionCost({ shape: '', model: latent, batch: [{ context: 10, rows: 1 }] })).toEqual({
    bytes: 10 * 1152 + 128 * 1088 * 2,
    flop: 10 * 128 * 2 * 1088,
  })
})
