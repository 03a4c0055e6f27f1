// A page of the prefix cache that one request computed serves another bit for bit, also when experts have replicas.
import { describe, expect, it } from 'vitest'
import { engineFlags } from '../../src/config/flags.js'
import { OneThreadEngine } from '../../src/engine/one-thread.js'
import type { RankRequest } from '../../src/scheduler/index.js'

const request = (id: string, inputIds: readonly number[], wantLogits: boolean): RankRequest => ({
  id,
  inputIds: Int32Array.from(inputIds),
  maxTokens: wantLogits ? 0 : 6,
  temperature: 0,
  topP: 1,
  topK: 0,
  minP: 0,
  seedLow: 0,
  seedHigh: 0,
  endTokenIds: [],
  wantLogits,
  isHealthCheck: false,
  priority: 0,
})

const layouts = [
  { tpSize: 1 },
  { tpSize: 3, attnDpSize: 3, epSize: 3, epNumRedundantExperts: 5 },
  { tpSize: 4, attnDpSize: 2, epSize: 4, epNumRedundantExperts: 4 },
]

describe.each(layouts)('a shared prefix on %o', layout => {
  it('changes no bit of what follows it', async () => {
    const modelPath = 'test/fixtures/checkpoints/deepseek_v2'
    const load = (disableRadixCache: boolean) =>
      OneThreadEngine.load(
        engineFlags({ modelPath, dtype: 'float32', pageSize: 2, maxTotalTokens: 400, disableRadixCache, ...layout }),
      )
    const [cached, plain] = [await load(false), await load(true)]
    const shared = [5, 9, 13, 17, 21, 25, 29, 33]
    // Requests with other ends come first, so that what the last ones read was computed for somebody else.
    const requests = [[90], [91, 92], [93], [94, 95, 96]].map((end, i) => request(`${i}`, [...shared, ...end], false))
    const routes = requests.map(() => 0)
    const [a, b] = [cached.run(requests, routes, 3), plain.run(requests, routes, 3)]
    for (const [id, { tokens, logprobs }] of b) {
      expect(a.get(id)!.tokens).toEqual(tokens)
      expect(a.get(id)!.logprobs).toEqual(logprobs)
    }
    expect(cached.lastCounters.cachedTokens).toBeGreaterThan(0)
    expect(plain.lastCounters.cachedTokens).toBe(0)
  })
})
