// Within a layout a request's bits depend on nothing but the request: not on what shares its batch, on chunks, pages, the
// order of arrival, prefixes found in the cache, retraction, the gather, or the order in which ranks move. (For a request
// on a given attention-DP rank.)
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { OneThreadEngine, OneThreadResult } from '../../src/engine/one-thread.js'
import type { RankRequest } from '../../src/scheduler/index.js'
import { bitsOf, drawing, fixturePath, type GivenFlags, loadOneThread, wantingLogits } from './harness.js'
import { layoutNamed } from './layouts.js'

const CASES: readonly (readonly [fixture: string, experts: number, layout: string])[] = [
  ['deepseek_v3', 16, '1 rank'],
  ['gpt_oss', 8, '1 rank'],
  ['qwen2_moe', 8, '1 rank'],
  ['deepseek_v3_yarn_noqlora', 16, 'tp4/attn_dp2/ep2'],
  ['olmoe', 16, 'tp4/attn_dp2/ep2'],
  ['gpt_oss', 8, 'tp4/attn_dp2/ep2'],
  ['mixtral', 8, 'tp4/attn_dp2/ep2, dense layers whole, head per DP rank'],
  ['deepseek_v2', 16, 'tp3/attn_dp3/ep3 with redundant experts'],
  ['qwen3_moe', 8, 'tp3/attn_dp3/ep3 with redundant experts'],
  ['glm4_moe', 16, 'tp3/attn_dp3/ep3 with redundant experts'],
]

const PROMPT = [7, 91, 3, 150, 22, 22, 68, 5, 119, 40, 81, 2, 13, 77, 104, 9, 56]

/** Logits of a prompt, tokens drawn greedily and with noise. */
const SUBJECTS: readonly RankRequest[] = [
  wantingLogits('subject.logits', PROMPT),
  drawing('subject.greedy', PROMPT, 6),
  drawing('subject.noisy', PROMPT.slice(4), 6, { temperature: 1.3, topP: 0.95, topK: 60, seed: 12_345n }),
]

interface Circumstances {
  readonly companions: readonly {
    /** Tokens of the subject's prompt it begins with: they meet in the prefix cache. */
    readonly shared: number
    readonly ids: number[]
    readonly tokens: number
    readonly route: number
  }[]
  readonly places: readonly number[]
  readonly chunk: number
  readonly pageSize: number
  readonly running: number
  /** KV tokens of a rank: with 64 requests wait, or are retracted and begin again. */
  readonly pool: number
  readonly cache: boolean
  readonly gather: 'auto' | 'all_gather' | 'all_gatherv' | 'all_reduce'
  readonly seed: number
}

const circumstances: fc.Arbitrary<Circumstances> = fc.record({
  companions: fc.array(
    fc.record({
      shared: fc.oneof(fc.constant(0), fc.nat(PROMPT.length)),
      ids: fc.array(fc.integer({ min: 0, max: 159 }), { minLength: 1, maxLength: 20 }),
      tokens: fc.integer({ min: 0, max: 7 }),
      route: fc.nat(3),
    }),
    { minLength: 1, maxLength: 6 },
  ),
  places: fc.tuple(fc.nat(6), fc.nat(6), fc.nat(6)),
  chunk: fc.constantFrom(1, 3, 5, 64),
  pageSize: fc.constantFrom(1, 3, 8, 16),
  running: fc.constantFrom(2, 5, 48),
  pool: fc.constantFrom(64, 48 * 64),
  cache: fc.boolean(),
  gather: fc.constantFrom('auto', 'all_gather', 'all_gatherv', 'all_reduce'),
  seed: fc.nat(1000),
})

function runAmong(engine: OneThreadEngine, c: Circumstances, home: number): Map<string, OneThreadResult> {
  const { attnDp } = engine.plan.topology.sizes
  const arriving = c.companions.map(({ shared, ids, tokens, route }, i) => {
    const prompt = [...PROMPT.slice(0, shared), ...ids]
    const drawn = drawing(`other.${i}`, prompt, tokens, { temperature: 0.7 })
    return { request: tokens === 0 ? wantingLogits(`other.${i}`, prompt) : drawn, route: route % attnDp }
  })
  SUBJECTS.forEach((request, i) => {
    arriving.splice(c.places[i]! % (arriving.length + 1), 0, { request, route: home })
  })
  return engine.run(
    arriving.map(a => a.request),
    arriving.map(a => a.route),
    c.seed,
  )
}

describe('bits of a request', () => {
  it.each(CASES)(
    '%s (%i experts), %s',
    async (fixture, experts, layout) => {
      const given = layoutNamed(layout).flags(experts)
      const home = (given.attnDpSize ?? 1) - 1
      const load = (flags: GivenFlags) => loadOneThread(fixturePath(fixture), { ...given, ...flags })
      const plain = await load({})
      const expected = new Map(
        SUBJECTS.map(subject => [subject.id, plain.run([subject], [home], 0).get(subject.id)!] as const),
      )
      expect(expected.get('subject.greedy')!.tokens).toHaveLength(6)
      expect(expected.get('subject.logits')!.logits).toHaveLength(PROMPT.length * 160)
      await fc.assert(
        fc.asyncProperty(circumstances, async c => {
          const engine = await load({
            chunkedPrefillSize: c.chunk,
            pageSize: c.pageSize,
            maxRunningRequests: c.running,
            maxTotalTokens: c.pool,
            disableRadixCache: !c.cache,
            dpGather: c.gather,
          })
          const found = runAmong(engine, c, home)
          for (const [id, { tokens, logprobs, logits }] of expected) {
            const result = found.get(id)!
            expect(result.tokens).toEqual(tokens)
            expect(bitsOf(Float32Array.from(result.logprobs))).toEqual(bitsOf(Float32Array.from(logprobs)))
            expect(bitsOf(result.logits)).toEqual(bitsOf(logits))
          }
        }),
        { numRuns: 25, seed: 20_261_129 },
      )
    },
    120_000,
  )

  it('differ between prompts, so equality above means something', async () => {
    const engine = await loadOneThread(fixturePath('mixtral'))
    const other = wantingLogits('other', [...PROMPT.slice(0, -1), 57])
    const results = engine.run([SUBJECTS[0]!, other], [0, 0], 0)
    const [a, b] = [results.get('subject.logits')!.logits, results.get('other')!.logits]
    const before = (PROMPT.length - 1) * 160
    expect(bitsOf(b.slice(0, before))).toEqual(bitsOf(a.slice(0, before)))
    expect(bitsOf(b.slice(before))).not.toEqual(bitsOf(a.slice(before)))
  })
})
