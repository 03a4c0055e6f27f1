// Logits and greedy tokens with an all-to-all are what another implementation computed: every layout, mode and transit, with
// mixed lengths in one batch. The wire is f32 here; dispatch-wires.test.ts has the others.
import { describe, expect, it } from 'vitest'
import { DISPATCH_LAYOUTS, DISPATCH_WAYS, lateDecoder, modesThatRan, ROOM } from './dispatch-layouts.js'
import { bothKinds, fixturePath, loadOneThread, readReference, worstLogits } from './harness.js'
import { MANY_RANKS_TOLERANCE } from './logits.suite.js'

export function dispatchLogitsSuite(fixture: string, experts: number): void {
  const directory = fixturePath(fixture)
  const prompts = readReference(directory)
  const requests = [...bothKinds(prompts), lateDecoder()]

  describe(`logits of ${fixture} through an all-to-all`, () => {
    it.each(DISPATCH_LAYOUTS.map(l => [l.name, l] as const))(
      '%s',
      async (_, layout) => {
        const given = layout.flags(experts)
        const attnDp = given.attnDpSize!
        for (const [seed, way] of DISPATCH_WAYS.entries()) {
          const engine = await loadOneThread(directory, { ...ROOM, ...given, ...way.flags })
          const routes = requests.map((_r, i) => way.route(i, attnDp))
          const results = engine.run(requests, routes, seed)
          expect(modesThatRan(engine).sort(), way.name).toEqual([...way.ran].sort())
          expect(worstLogits(results, prompts), way.name).toBeLessThan(MANY_RANKS_TOLERANCE)
          const drawn = prompts.map((_p, i) => results.get(`greedy.${i}`)!.tokens)
          expect(drawn, way.name).toEqual(prompts.map(p => p.greedy))
        }
      },
      120_000,
    )
  })
}
