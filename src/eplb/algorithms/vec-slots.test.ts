// The slots of the vec variants against the rule written out plainly: every candidate's peaks summed step by step in float32.
import { describe, expect, it } from 'vitest'
import { CounterRandom, STREAM } from '../../runtime/random.js'
import { chunkSlots } from './vec-slots.js'

const f32 = Math.fround

/** Replicas per expert by the plain rule, for one chunk that is the whole layer. */
function plainCounts(loads: Float32Array, steps: number, experts: number, slots: number): number[] {
  const count = new Array<number>(experts).fill(1)
  const base = (s: number, e: number) => f32(loads[s * experts + e]! + f32(e * f32(1e-4)))
  for (let slot = experts; slot < slots; slot++) {
    let winner = 0
    let least = Number.POSITIVE_INFINITY
    for (let i = 0; i < experts; i++) {
      let sum = 0
      for (let s = 0; s < steps; s++) {
        let top = 0
        let others = Number.NEGATIVE_INFINITY
        const score = (e: number) => f32(base(s, e) / count[e]!)
        for (let e = 1; e < experts; e++) if (score(e) > score(top)) top = e
        for (let e = 0; e < experts; e++) if (e !== top) others = Math.max(others, score(e))
        const peak = top === i ? Math.max(others, f32(loads[s * experts + i]! / (count[i]! + 1))) : score(top)
        sum = f32(sum + peak)
      }
      if (sum < least) {
        least = sum
        winner = i
      }
    }
    count[winner]!++
  }
  return count
}

describe('extra slots of the vec variants', () => {
  it.each([
    ['noise', 1, 60, 12, 30, 1000],
    ['few distinct loads, many ties', 2, 80, 10, 26, 3],
    ['large loads, where float32 rounds', 3, 120, 12, 26, 16_000_000],
    ['no load at all', 4, 5, 6, 15, 1],
    ['one expert', 5, 7, 1, 4, 50],
  ])('%s: as the plain rule says', (_, seed, steps, experts, slots, range) => {
    const random = new CounterRandom(seed, STREAM.benchmark)
    const loads = Float32Array.from({ length: steps * experts }, () => random.below(range))
    const { count } = chunkSlots(loads, steps, experts, 0, experts, slots)
    expect([...count]).toEqual(plainCounts(loads, steps, experts, slots))
  })
})
