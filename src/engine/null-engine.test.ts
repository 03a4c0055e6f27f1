// The pace of the engine that computes nothing, on a clock that stands still unless it sleeps.
import { setImmediate as nextTurn } from 'node:timers/promises'
import { describe, expect, it } from 'vitest'
import { NullEngine } from './null-engine.js'
import { GREEDY } from './request.js'

describe('the null engine', () => {
  it('gives every running request a token each step, by the clock it was given', async () => {
    let now = 1000
    const engine = new NullEngine({
      stepMs: 10,
      maxRunningRequests: 2,
      clock: { now: () => now },
      sleep: async ms => {
        await nextTurn()
        now += ms
      },
    })
    const ends = [3, 5, 2].map(async maxTokens => {
      let tokens = 0
      for await (const { tokenIds, finish } of engine.generate({
        inputIds: [1, 2],
        sampling: { ...GREEDY, maxTokens },
      })) {
        tokens += tokenIds.length
        if (finish) return [tokens, finish.timings.firstTokenMs, finish.timings.totalMs]
      }
      return null
    })
    // Two run at once: the third begins when the first has ended, in the step after it.
    expect(await Promise.all(ends)).toEqual([
      [3, 10, 30],
      [5, 10, 50],
      [2, 40, 50],
    ])
    await engine.close()
  })
})
