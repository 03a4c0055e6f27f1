// Two ranks with a GPU each (or sharing one): attention on each, experts divided, rows over peer memory. Whole models against one rank on
// a GPU: logits, greedy tokens, both modes of dispatch, idle ranks, and ranks in threads of their own.
import { describe, expect, it } from 'vitest'
import { Engine, GREEDY } from '../../src/engine/index.js'
import { modesThatRan } from '../engine/dispatch-layouts.js'
import { bothKinds, drawing, fixturePath, flagsFor, type GivenFlags, readReference } from '../engine/harness.js'
import { collect } from '../engine/requests.js'
import { bf16Bound, expectDrawn, expectGreedy, shortfall } from './agreement.js'
import {
  distances,
  eachDraw,
  gapsAlong,
  logitsAlong,
  modelLoader,
  ONE_RANK,
  type Results,
  runAll,
  SEVERAL_GPUS,
  TWO_RANKS,
} from './models.js'

const F32_TOLERANCE = 1e-3

const load = modelLoader()

const WAYS: readonly { name: string; flags: GivenFlags; route: (i: number) => number; ran: readonly string[] }[] = [
  { name: 'normal', flags: { deepepMode: 'normal' }, route: i => i % 2, ran: ['normal'] },
  {
    name: 'normal, chunks of 3, an idle rank',
    flags: { deepepMode: 'normal', chunkedPrefillSize: 3 },
    route: () => 1,
    ran: ['normal'],
  },
  {
    name: 'low latency',
    flags: { deepepMode: 'low_latency', deepepNumMaxDispatchTokensPerRank: 128 },
    route: i => i % 2,
    ran: ['low_latency'],
  },
  {
    name: 'low latency, chunks of 3, an idle rank',
    flags: { deepepMode: 'low_latency', chunkedPrefillSize: 3, deepepNumMaxDispatchTokensPerRank: 64 },
    route: () => 1,
    ran: ['low_latency'],
  },
  {
    name: 'both modes',
    flags: { deepepMode: 'auto', deepepNumMaxDispatchTokensPerRank: 8 },
    route: i => (i % 3 === 0 ? 0 : 1),
    ran: ['normal', 'low_latency'],
  },
]

describe.each(['qwen3_moe', 'deepseek_v3'])(`%s, two ranks (${TWO_RANKS.device}) against one`, fixture => {
  const path = fixturePath(fixture)
  const prompts = readReference(path)
  const requests = bothKinds(prompts)

  it.each(['float32', 'bfloat16'] as const)('%s', { timeout: 300_000 }, async dtype => {
    const one = await load(path, { ...ONE_RANK, dtype })
    const expected = runAll(one, requests)
    const { vocabSize, layers } = one.plan.spec
    const rowsOf = (results: Results) => prompts.map((_, i) => results.get(`logits.${i}`)!.logits)
    const textsOf = (results: Results) =>
      prompts.map(({ ids }, i) => ({ ids, tokens: results.get(`greedy.${i}`)!.tokens }))
    const theirs = textsOf(expected)
    const gaps = gapsAlong(one, theirs)
    for (const { name, flags, route, ran } of WAYS) {
      const engine = await load(path, { ...TWO_RANKS, ...flags, dtype })
      const found = runAll(engine, requests, route)
      expect(modesThatRan(engine), name).toEqual(ran)
      const { at, largestLogit } = distances(rowsOf(found), rowsOf(expected), vocabSize)
      const bound = dtype === 'float32' ? F32_TOLERANCE : bf16Bound(largestLogit, layers.length)
      console.info(
        `${fixture} ${dtype}, ${name}: rows differ by ${at(0.5).toPrecision(3)} (median), ${at(1).toPrecision(3)} (worst); bound ${bound.toPrecision(3)}`,
      )
      // In bf16 an expert may be chosen differently after a rounding, which is no error but moves a row far.
      expect(at(dtype === 'float32' ? 1 : 0.5), name).toBeLessThan(bound)
      const ours = textsOf(found)
      const along = logitsAlong(one, ours)
      const shortfalls = ours.flatMap((text, i) => eachDraw(text, along[i]!, vocabSize, shortfall))
      expectDrawn(`${fixture} ${dtype}, ${name}`, shortfalls, bound, dtype === 'float32' ? 1 : 0.9)
      if (dtype === 'bfloat16') continue
      ours.forEach(({ tokens }, i) => {
        expectGreedy(`${name}, prompt ${i}`, tokens, theirs[i]!.tokens, gaps[i]!, bound)
      })
    }
  })
})

describe('two ranks in threads of their own', () => {
  it.each(['normal', 'low_latency', 'auto'] as const)(
    '%s: the tokens of one rank',
    { timeout: 120_000 },
    async deepepMode => {
      const path = fixturePath('qwen3_moe')
      const flags: GivenFlags = { dtype: 'float32', deepepNumMaxDispatchTokensPerRank: 128 }
      const ids = readReference(path).map(p => p.ids)
      const one = await load(path, { ...flags, ...ONE_RANK })
      const expected = runAll(
        one,
        ids.map((prompt, i) => drawing(`${i}`, prompt, 16)),
      )
      const tokens = ids.map((_, i) => expected.get(`${i}`)!.tokens)
      const gaps = gapsAlong(
        one,
        ids.map((prompt, i) => ({ ids: prompt, tokens: tokens[i]! })),
      )
      await using engine = await Engine.start(flagsFor(path, { ...flags, ...TWO_RANKS, deepepMode }))
      const sampling = { ...GREEDY, maxTokens: 16, ignoreEos: true }
      // All at once, so that both ranks have work; then one, so that one of them is idle.
      for (const round of [ids, ids.slice(0, 1), ids]) {
        const results = await Promise.all(round.map(inputIds => collect(engine.generate({ inputIds, sampling }))))
        results.forEach((result, i) => {
          expectGreedy(`${deepepMode}, prompt ${i}`, result.tokens, tokens[i]!, gaps[i]!, F32_TOLERANCE)
        })
      }
      const graphs = engine.state().map(s => s.device?.graphSteps ?? 0)
      console.info(`${deepepMode}: steps replayed from graphs, by rank: ${graphs.join(', ')}`)
      if (SEVERAL_GPUS && deepepMode !== 'normal') for (const steps of graphs) expect(steps).toBeGreaterThan(0)
      else for (const steps of graphs) expect(steps).toBe(0)
    },
  )
})
