// Every layout computes what another implementation computed: logits of the reference prompts and 16 greedy tokens, with
// mixed lengths in one batch. All ranks run in one thread in a seeded order; workers.test.ts repeats some in real threads.
import { describe, expect, it } from 'vitest'
import {
  bothKinds,
  fixturePath,
  loadOneThread,
  readReference,
  smallestGap,
  wantingLogits,
  worstLogits,
} from './harness.js'
import { LAYOUTS, layoutNamed, variantsFor } from './layouts.js'

/** f32 on one rank, and with sums over ranks in another order. */
export const ONE_RANK_TOLERANCE = 2e-5
export const MANY_RANKS_TOLERANCE = 2e-4

export function logitsSuite(fixture: string, experts: number): void {
  const directory = fixturePath(fixture)
  const prompts = readReference(directory)
  const requests = bothKinds(prompts)
  const greedyOf = (results: ReadonlyMap<string, { readonly tokens: readonly number[] }>) =>
    prompts.map((_, i) => results.get(`greedy.${i}`)!.tokens)

  describe(`logits of ${fixture}`, () => {
    it.each(LAYOUTS.map(l => [l.name, l] as const))(
      '%s',
      async (_, layout) => {
        const flags = layout.flags(experts)
        const attnDp = flags.attnDpSize ?? 1
        const tolerance = (flags.tpSize ?? 1) === 1 ? ONE_RANK_TOLERANCE : MANY_RANKS_TOLERANCE
        for (const [seed, variant] of variantsFor(attnDp).entries()) {
          const engine = await loadOneThread(directory, { ...flags, ...variant.flags })
          expect(engine.plan.topology.sizes.attnDp).toBe(attnDp)
          const results = engine.run(
            requests,
            requests.map((_r, i) => variant.route(i, attnDp)),
            seed,
          )
          expect(worstLogits(results, prompts), variant.name).toBeLessThan(tolerance)
          expect(greedyOf(results), variant.name).toEqual(prompts.map(p => p.greedy))
        }
      },
      120_000,
    )

    it.each(['1 rank', 'tp4/attn_dp2/ep4'])(
      'reference kernels, %s',
      async name => {
        const flags = layoutNamed(name).flags(experts)
        const engine = await loadOneThread(directory, { ...flags, kernels: 'reference' })
        const results = engine.run(
          requests,
          requests.map((_r, i) => i % (flags.attnDpSize ?? 1)),
          0,
        )
        expect(worstLogits(results, prompts)).toBeLessThan(flags.tpSize ? MANY_RANKS_TOLERANCE : ONE_RANK_TOLERANCE)
        expect(greedyOf(results)).toEqual(prompts.map(p => p.greedy))
      },
      120_000,
    )

    it('no greedy token is a near tie: equality of tokens means something', async () => {
      const engine = await loadOneThread(directory)
      const whole = prompts.map(({ ids, greedy }, i) => wantingLogits(`${i}`, [...ids, ...greedy]))
      const results = engine.run(
        whole,
        whole.map(() => 0),
        0,
      )
      const vocab = engine.plan.spec.vocabSize
      const gap = Math.min(
        ...prompts.map(({ ids, greedy }, i) => {
          const from = (ids.length - 1) * vocab
          return smallestGap(results.get(`${i}`)!.logits.subarray(from, from + greedy.length * vocab), vocab)
        }),
      )
      console.info(`${fixture}: the smallest gap between the two best of a greedy token is ${gap.toPrecision(3)}`)
      expect(gap).toBeGreaterThan(10 * ONE_RANK_TOLERANCE)
    }, 120_000)

    it('experts do not divide over 3 ranks without redundant ones', async () => {
      const load = loadOneThread(directory, { tpSize: 3, attnDpSize: 3, epSize: 3 })
      await expect(load).rejects.toMatchObject({ code: 'SY_PARALLEL_SIZES' })
    })
  })
}
