// Bits through an all-to-all. Within a layout, a request on a given attention-DP rank gets the same bits whatever shares its
// batch, in every mode and wire; and where rows travel as f32 and the order of sums is the same, normal, low-latency and no
// all-to-all agree bit for bit. Sums over ranks are in ascending order in all three; what can differ is what is added.
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { EngineFlags } from '../../src/config/flags.js'
import type { OneThreadEngine, OneThreadResult } from '../../src/engine/one-thread.js'
import type { RankRequest } from '../../src/scheduler/index.js'
import { ROOM, SMALL_RINGS } from './dispatch-layouts.js'
import {
  bitsOf,
  drawing,
  fixturePath,
  type GivenFlags,
  loadOneThread,
  maxDifference,
  wantingLogits,
} from './harness.js'
import { redundantFor } from './layouts.js'
import { MANY_RANKS_TOLERANCE } from './logits.suite.js'

const PROMPT = [7, 91, 3, 150, 22, 22, 68, 5, 119, 40, 81, 2, 13]
const SUBJECTS: readonly RankRequest[] = [
  wantingLogits('subject.logits', PROMPT),
  drawing('subject.greedy', PROMPT, 6),
  drawing('subject.noisy', PROMPT.slice(4), 6, { temperature: 1.3, topP: 0.95, topK: 60, seed: 12_345n }),
]

const layout = (tpSize: number, attnDpSize: number): GivenFlags => ({ tpSize, attnDpSize, epSize: tpSize })
const WIRES = ['f32', 'bf16', 'fp8', 'int8'] as const

type Expected = ReadonlyMap<string, OneThreadResult>

const alone = (engine: OneThreadEngine, home: number): Expected =>
  new Map(SUBJECTS.map(subject => [subject.id, engine.run([subject], [home], 0).get(subject.id)!] as const))

function expectSame(found: ReadonlyMap<string, OneThreadResult>, expected: Expected, what: string): void {
  for (const [id, { tokens, logprobs, logits }] of expected) {
    const result = found.get(id)!
    expect(result.tokens, `${what}: ${id}`).toEqual(tokens)
    expect(bitsOf(Float32Array.from(result.logprobs)), what).toEqual(bitsOf(Float32Array.from(logprobs)))
    expect(bitsOf(result.logits), `${what}: ${id}`).toEqual(bitsOf(logits))
  }
}

/** Does any logit differ? For checks that a comparison could fail. */
const differ = (a: Expected, b: Expected): boolean =>
  bitsOf(a.get('subject.logits')!.logits).some((word, i) => word !== bitsOf(b.get('subject.logits')!.logits)[i])

const circumstances = fc.record({
  companions: fc.array(
    fc.record({
      ids: fc.array(fc.integer({ min: 0, max: 159 }), { minLength: 1, maxLength: 14 }),
      tokens: fc.integer({ min: 0, max: 7 }),
      route: fc.nat(3),
    }),
    { minLength: 1, maxLength: 6 },
  ),
  places: fc.tuple(fc.nat(6), fc.nat(6), fc.nat(6)),
  chunk: fc.constantFrom(1, 3, 5, 40),
  running: fc.constantFrom(2, 5, 12),
  gather: fc.constantFrom('auto', 'all_gather', 'all_gatherv', 'all_reduce') as fc.Arbitrary<EngineFlags['dpGather']>,
  mode: fc.constantFrom('normal', 'low_latency', 'auto') as fc.Arbitrary<EngineFlags['deepepMode']>,
  /** Slots of auto; low_latency gets as many as a step can bring. */
  slots: fc.integer({ min: 1, max: 8 }),
  rings: fc.boolean(),
  seed: fc.nat(1000),
})

const CASES: readonly (readonly [fixture: string, given: GivenFlags])[] = [
  ['deepseek_v3', layout(4, 2)],
  ['gpt_oss', layout(2, 1)],
  ['olmoe', { ...layout(3, 3), epNumRedundantExperts: redundantFor(16, 3) }],
]

describe('bits of a request through an all-to-all', () => {
  it.each(CASES.flatMap(([fixture, given]) => WIRES.map(wire => [fixture, wire, given] as const)))(
    '%s, %s wire: the same in any company, mode, transit, chunk and gather',
    async (fixture, deepepDispatcherOutputDtype, given) => {
      const load = (flags: GivenFlags) =>
        loadOneThread(fixturePath(fixture), {
          ...ROOM,
          ...given,
          moeA2aBackend: 'deepep',
          deepepDispatcherOutputDtype,
          ...flags,
        })
      const home = given.attnDpSize! - 1
      const expected = alone(await load({ deepepMode: 'normal' }), home)
      expect(expected.get('subject.greedy')!.tokens).toHaveLength(6)
      expect(expected.get('subject.logits')!.logits).toHaveLength(PROMPT.length * 160)
      await fc.assert(
        fc.asyncProperty(circumstances, async c => {
          const engine = await load({
            chunkedPrefillSize: c.chunk,
            maxRunningRequests: c.running,
            dpGather: c.gather,
            deepepMode: c.mode,
            deepepNumMaxDispatchTokensPerRank: c.mode === 'low_latency' ? c.chunk + c.running : c.slots,
            deepepConfig: c.rings ? SMALL_RINGS : null,
          })
          const arriving = c.companions.map(({ ids, tokens, route }, i) => ({
            request: tokens === 0 ? wantingLogits(`other.${i}`, ids) : drawing(`other.${i}`, ids, tokens),
            route: route % given.attnDpSize!,
          }))
          SUBJECTS.forEach((request, i) => {
            arriving.splice(c.places[i]! % (arriving.length + 1), 0, { request, route: home })
          })
          const found = engine.run(
            arriving.map(a => a.request),
            arriving.map(a => a.route),
            c.seed,
          )
          expectSame(found, expected, JSON.stringify(c))
        }),
        { numRuns: 12, seed: 20_261_129 },
      )
    },
    120_000,
  )

  it('differ between wires, so equality above means something', async () => {
    const of = async (deepepDispatcherOutputDtype: (typeof WIRES)[number]) =>
      alone(
        await loadOneThread(fixturePath('olmoe'), {
          ...ROOM,
          ...layout(2, 2),
          moeA2aBackend: 'deepep',
          deepepDispatcherOutputDtype,
        }),
        0,
      )
    const [f32, bf16, fp8, int8] = [await of('f32'), await of('bf16'), await of('fp8'), await of('int8')]
    expect([differ(f32, bf16), differ(bf16, fp8), differ(fp8, int8), differ(f32, int8)]).toEqual(Array(4).fill(true))
  })
})

describe('bits with and without an all-to-all', () => {
  const compare = async (fixture: string, given: GivenFlags) => {
    const load = (flags: GivenFlags) => loadOneThread(fixturePath(fixture), { ...ROOM, ...given, ...flags })
    const home = given.attnDpSize! - 1
    const none = alone(await load({}), home)
    const dispatched = await Promise.all(
      (['normal', 'low_latency'] as const).map(async deepepMode =>
        alone(await load({ moeA2aBackend: 'deepep', deepepMode, deepepNumMaxDispatchTokensPerRank: 52 }), home),
      ),
    )
    return { none, normal: dispatched[0]!, lowLatency: dispatched[1]! }
  }

  // Rows that meet the same experts in the same slots give the same partial sums, and ranks are added in ascending order.
  it.each<[string, GivenFlags]>([
    ['mixtral', layout(2, 2)],
    ['olmoe', layout(4, 4)],
    ['qwen3_moe', layout(4, 4)],
    ['gpt_oss', layout(2, 2)],
    ['mixtral', layout(4, 2)],
    ['olmoe', { ...layout(3, 3), epNumRedundantExperts: redundantFor(16, 3) }],
  ])('%s %o: none, normal and low_latency are equal', async (fixture, given) => {
    const { none, normal, lowLatency } = await compare(fixture, given)
    expectSame(lowLatency, normal, 'low_latency against normal')
    expectSame(normal, none, 'normal against none')
  })

  // Without an all-to-all the shared expert is cut over all ranks and joins each rank's partial sum; with one it is whole
  // and added last, where the row lives.
  it.each<[string, GivenFlags]>([
    ['glm4_moe', layout(2, 2)],
    ['qwen2_moe', layout(2, 2)],
    ['deepseek_v2', layout(4, 2)],
    ['deepseek_v3', layout(4, 4)],
  ])('%s %o: a shared expert is added elsewhere, so none is only close', async (fixture, given) => {
    const { none, normal, lowLatency } = await compare(fixture, given)
    expectSame(lowLatency, normal, 'low_latency against normal')
    expect(differ(none, normal)).toBe(true)
    const logits = (of: Expected) => of.get('subject.logits')!.logits
    expect(maxDifference(logits(none), logits(normal))).toBeLessThan(MANY_RANKS_TOLERANCE)
    expect(normal.get('subject.greedy')!.tokens).toEqual(none.get('subject.greedy')!.tokens)
  })
})
