// Engines as wholes: closing, how requests spread over attention-DP ranks, and how many tokens a layout's caches hold.
// Real worker threads and the demo model; each test starts what it needs.
import { totalmem } from 'node:os'
import { describe, expect, it } from 'vitest'
import { type Engine, explainModel, type GenerationRequest, GREEDY, startEngine } from '../../src/engine/index.js'
import { until } from '../serve-echo.js'
import { flagsFor, type GivenFlags } from './harness.js'
import { collect, first } from './requests.js'

const DEMO = 'models/demo'
const start = (flags: GivenFlags): Promise<Engine> => startEngine(flagsFor(DEMO, { contextLength: 512, ...flags }))

const long = (promptTokens: number, more: Partial<GenerationRequest> = {}): GenerationRequest => ({
  inputIds: Array.from({ length: promptTokens }, (_, i) => 100 + i),
  sampling: { ...GREEDY, maxTokens: 400, ignoreEos: true },
  ...more,
})

describe('close', () => {
  it('finishes what runs, takes nothing new, and can be called twice', async () => {
    const engine = await start({ tpSize: 2, attnDpSize: 2, epSize: 2, maxTotalTokens: 2048 })
    const running = [0, 1, 2].map(i =>
      collect(engine.generate({ ...long(5 + i), sampling: { ...GREEDY, maxTokens: 40, ignoreEos: true } })),
    )
    const closed = engine.close(30_000)
    expect(() => engine.generate(long(5))).toThrow(expect.objectContaining({ code: 'SY_ENGINE_CLOSING', status: 503 }))
    await expect(engine.logits([5])).rejects.toMatchObject({ code: 'SY_ENGINE_CLOSING' })
    const results = await Promise.all(running)
    expect(results.map(r => [r.tokens.length, r.finish?.reason])).toEqual([40, 40, 40].map(n => [n, 'length']))
    await closed
    await engine.close()
  })

  it('aborts what is left when its time is over', async () => {
    const engine = await start({ maxTotalTokens: 2048 })
    const events = engine.generate(long(5))[Symbol.asyncIterator]()
    await first(events, 2)
    const rest = collect({ [Symbol.asyncIterator]: () => events })
    await engine.close(1)
    expect((await rest).finish?.reason).toBe('abort')
  })
})

describe('requests over attention-DP ranks', () => {
  /** Running requests of each rank once all of them run. */
  async function spread(flags: GivenFlags, requests: readonly GenerationRequest[]): Promise<number[]> {
    await using engine = await start({ tpSize: 2, attnDpSize: 2, epSize: 2, maxTotalTokens: 4096, ...flags })
    const streams = requests.map(r => engine.generate(r)[Symbol.asyncIterator]())
    const running = () => engine.state().map(s => s.running)
    await until(() => running().reduce((a, b) => a + b, 0) === requests.length, 'all requests run')
    const found = running()
    await Promise.all(streams.map(s => s.return?.()))
    return found
  }

  it.each([
    ['auto', [40, 2, 3, 2], [2, 2]],
    ['round_robin', [40, 2, 3, 2, 2], [3, 2]],
    ['total_requests', [40, 2, 3, 2], [2, 2]],
    ['total_tokens', [40, 2, 3, 2], [1, 3]],
  ] as const)('%s', async (loadBalanceMethod, lengths, expected) => {
    expect(
      await spread(
        { loadBalanceMethod },
        lengths.map(n => long(n)),
      ),
    ).toEqual(expected)
  })

  it('routed_dp_rank is respected and counted', async () => {
    const routed = [1, 1, 1].map(routedDpRank => long(3, { routedDpRank }))
    expect(await spread({}, routed)).toEqual([0, 3])
    expect(await spread({ loadBalanceMethod: 'total_requests' }, [...routed, long(3), long(3), long(3)])).toEqual([
      3, 3,
    ])
  })
})

describe('KV tokens at equal memory', () => {
  it('attn_dp 4 holds four times what attn_tp 4 holds, as explain predicts', async () => {
    const weights = explainModel(flagsFor(DEMO, { tpSize: 4, epSize: 4 })).memory.weightBytes
    // The static memory holds the weights and 32 MiB of caches; requests could use far more.
    const budget = {
      memFractionStatic: (weights + 2 ** 25) / totalmem(),
      maxTotalTokens: null,
      contextLength: 2048,
      maxRunningRequests: 256,
      tpSize: 4,
      epSize: 4,
    }
    const measure = async (flags: GivenFlags) => {
      const predicted = explainModel(flagsFor(DEMO, flags))
      await using engine = await startEngine(flagsFor(DEMO, flags))
      const state = engine.state()
      expect(state.map(s => s.totalTokens)).toEqual(state.map(() => predicted.memory.kvTokens))
      const info = engine.info() as { readonly max_total_num_tokens: number; readonly kvBytes: number }
      expect(info.max_total_num_tokens).toBe(state[0]!.totalTokens)
      const { attnDp } = engine.plan.topology.sizes
      const choice = predicted.kvChoices.find(c => c.attnDp === attnDp)!
      const tokens = state.reduce((sum, s) => sum + s.totalTokens, 0)
      expect(choice.tokensInAll).toBe(tokens)
      const other = predicted.kvChoices.find(c => c.attnDp === (attnDp === 4 ? 1 : 4))!
      return { tokens, bytes: info.kvBytes, predictedOther: other.tokensInAll }
    }
    const dp = await measure({ ...budget, attnDpSize: 4 })
    const tp = await measure({ ...budget, attnDpSize: 1 })
    expect(dp.tokens).toBe(4 * tp.tokens)
    expect(dp.bytes).toBe(tp.bytes)
    expect(dp.bytes).toBeGreaterThan(0.9 * 2 ** 25)
    expect(dp.predictedOther).toBe(tp.tokens)
    expect(tp.predictedOther).toBe(dp.tokens)
  }, 60_000)
})
