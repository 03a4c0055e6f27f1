// The same layouts with a real worker thread a rank: each architecture once, logits and greedy tokens of the reference
// prompts, all requests at once. What one thread cannot show is here: threads, ports, waits.
import { describe, expect, it } from 'vitest'
import { GREEDY, startEngine } from '../../src/engine/index.js'
import { fixturePath, flagsFor, type GivenFlags, maxDifference, readReference } from './harness.js'
import { collect } from './requests.js'

const CASES: readonly (readonly [fixture: string, layout: string, flags: GivenFlags])[] = [
  ['deepseek_v2', 'tp4/attn_dp2/ep2', { tpSize: 4, attnDpSize: 2, epSize: 2 }],
  ['deepseek_v3', 'tp2/attn_dp2/ep2, chunks of 3', { tpSize: 2, attnDpSize: 2, epSize: 2, chunkedPrefillSize: 3 }],
  ['glm4_moe', '1 rank', {}],
  ['gpt_oss', 'tp4/attn_dp1/ep4', { tpSize: 4, epSize: 4 }],
  [
    'mixtral',
    'tp3/attn_dp3/ep3, a redundant expert',
    { tpSize: 3, attnDpSize: 3, epSize: 3, epNumRedundantExperts: 1 },
  ],
  ['olmoe', 'tp2', { tpSize: 2 }],
  [
    'qwen2_moe',
    'tp4/attn_dp2/ep4, head per DP rank',
    { tpSize: 4, attnDpSize: 2, epSize: 4, enableDpLmHead: true, moeDenseTpSize: 1 },
  ],
  ['qwen3_moe', 'tp4/attn_dp4/ep2, all_reduce', { tpSize: 4, attnDpSize: 4, epSize: 2, dpGather: 'all_reduce' }],
]

describe('real worker threads', () => {
  it.each(CASES)(
    '%s, %s',
    async (fixture, _, flags) => {
      const directory = fixturePath(fixture)
      const prompts = readReference(directory)
      await using engine = await startEngine(flagsFor(directory, flags))
      const sampling = { ...GREEDY, maxTokens: 16, ignoreEos: true }
      const [logits, drawn] = await Promise.all([
        Promise.all(prompts.map(({ ids }) => engine.logits(ids))),
        Promise.all(prompts.map(({ ids }) => collect(engine.generate({ inputIds: ids, sampling })))),
      ])
      for (const [i, prompt] of prompts.entries()) {
        expect(maxDifference(logits[i]!, prompt.logits)).toBeLessThan((flags.tpSize ?? 1) > 1 ? 2e-4 : 2e-5)
        expect(drawn[i]!.tokens).toEqual(prompt.greedy)
        expect(drawn[i]!.finish?.reason).toBe('length')
      }
      expect(engine.state().every(s => s.usedTokens === 0 && s.running === 0)).toBe(true)
    },
    60_000,
  )
})
