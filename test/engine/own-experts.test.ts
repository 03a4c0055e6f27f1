// Ranks that hold only their own experts, as on GPUs, computed on the CPU: logits of another implementation and its greedy tokens, with
// replicas, in both modes of dispatch, with idle ranks.
import { describe, expect, it } from 'vitest'
import { OneThreadEngine } from '../../src/engine/one-thread.js'
import {
  bothKinds,
  EXPERTS_ON_TWO,
  fixturePath,
  flagsFor,
  type GivenFlags,
  readReference,
  smallestGap,
  worstLogits,
} from './harness.js'

const TOLERANCE = 2e-4
const RANKS: GivenFlags = {
  ...EXPERTS_ON_TWO,
  deepepNumMaxDispatchTokensPerRank: 128,
}

describe.each(['qwen3_moe', 'deepseek_v3', 'qwen2_moe'])('%s with experts of its own on each rank', fixture => {
  const path = fixturePath(fixture)
  const prompts = readReference(path)
  const requests = bothKinds(prompts)

  it.each([
    ['normal', 0],
    ['normal', 2],
    ['low_latency', 0],
    ['auto', 2],
  ] as const)('%s, %i redundant experts', async (deepepMode, epNumRedundantExperts) => {
    const flags: GivenFlags = { ...RANKS, deepepMode, epNumRedundantExperts }
    const engine = await OneThreadEngine.load(flagsFor(path, flags), { ownExperts: true })
    const [slots] = engine.plan.placement!.cluster.slotsPerGpu
    const stacks = engine.plan.programs[1]![0]!.weights.weights.flatMap(w =>
      w.form === 'matrix' && w.name.endsWith('.moe.gate_up') ? [w.pieces.length] : [],
    )
    expect(new Set(stacks)).toEqual(new Set([slots]))
    for (const route of [(i: number) => i % 2, () => 1]) {
      const results = engine.run(
        requests,
        requests.map((_, i) => route(i)),
        3,
      )
      expect(worstLogits(results, prompts)).toBeLessThan(TOLERANCE)
      prompts.forEach(({ greedy, logits }, i) => {
        if (smallestGap(logits, engine.plan.spec.vocabSize) < 10 * TOLERANCE) return
        expect(results.get(`greedy.${i}`)!.tokens).toEqual(greedy)
      })
    }
  })
})
