// The bundled demo model against its reference: greedy ids, their text, and the mean negative log-likelihood of each prompt.
import { readFileSync } from 'node:fs'
import { describe, expect, it } from 'vitest'
import { openTokenizer } from '../../src/engine/load-model.js'
import { drawing, type GivenFlags, loadOneThread, wantingLogits } from './harness.js'

const DEMO = 'models/demo'

interface DemoReference {
  readonly prompt: string
  readonly ids: readonly number[]
  readonly greedy: readonly number[]
  readonly text: string
  readonly last_top: { readonly ids: readonly number[]; readonly logits: readonly number[] }
  readonly nll: number
}
const references = JSON.parse(readFileSync(`${DEMO}/reference.json`, 'utf8')) as DemoReference[]

/** Mean of -log p over the ids from the second on. */
function meanNll(ids: readonly number[], logits: Float32Array, vocab: number): number {
  let sum = 0
  for (let t = 1; t < ids.length; t++) {
    const row = logits.subarray((t - 1) * vocab, t * vocab)
    const largest = row.reduce((a, b) => Math.max(a, b))
    sum += largest + Math.log(row.reduce((total, v) => total + Math.exp(v - largest), 0)) - row[ids[t]!]!
  }
  return sum / (ids.length - 1)
}

const LAYOUTS: readonly (readonly [string, GivenFlags])[] = [
  ['1 rank', {}],
  ['tp2/attn_dp2/ep2', { tpSize: 2, attnDpSize: 2, epSize: 2 }],
]

describe('the demo model in float32', () => {
  it.each(LAYOUTS)(
    '%s',
    async (_, layout) => {
      const engine = await loadOneThread(DEMO, { contextLength: 128, maxTotalTokens: 4096, ...layout })
      const { attnDp } = engine.plan.topology.sizes
      const vocab = engine.plan.spec.vocabSize
      const tokenizer = openTokenizer(engine.plan)!
      const requests = references.flatMap(({ ids, greedy }, i) => [
        wantingLogits(`logits.${i}`, ids),
        drawing(`greedy.${i}`, ids, greedy.length),
      ])
      const results = engine.run(
        requests,
        requests.map((_r, i) => i % attnDp),
        2,
      )
      expect(references.length).toBeGreaterThan(1)
      for (const [i, { prompt, ids, greedy, text, last_top, nll }] of references.entries()) {
        expect(tokenizer.encode(prompt, { addSpecialTokens: true })).toEqual(ids)
        const { tokens } = results.get(`greedy.${i}`)!
        expect(tokens).toEqual(greedy)
        expect(tokenizer.decode(tokens)).toBe(text)
        const { logits } = results.get(`logits.${i}`)!
        expect(Math.abs(meanNll(ids, logits, vocab) - nll)).toBeLessThan(1e-4)
        const last = logits.subarray((ids.length - 1) * vocab)
        // The reference file has four decimals.
        for (const [k, id] of last_top.ids.entries())
          expect(Math.abs(last[id]! - last_top.logits[k]!)).toBeLessThan(2e-4)
      }
    },
    120_000,
  )
})
