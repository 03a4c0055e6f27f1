// The bound against the true optimum, found by trying every placement of small cases.
import { describe, expect, it } from 'vitest'
import { CounterRandom, STREAM } from '../runtime/random.js'
import { makeCluster } from './cluster.js'
import { peakLowerBound } from './lower-bound.js'
import type { Cluster } from './types.js'

/** Least peak over all ways to fill the slots of live GPUs. */
function optimum(weights: Float64Array, cluster: Cluster): number {
  const slots = cluster.slotsPerGpu.filter((_, g) => !cluster.dead.includes(g))
  const gpuOf = slots.flatMap((n, g) => new Array<number>(n).fill(g))
  const chosen = new Array<number>(gpuOf.length).fill(0)
  let least = Number.POSITIVE_INFINITY
  const fill = (at: number) => {
    if (at === gpuOf.length) {
      const count = new Array<number>(weights.length).fill(0)
      for (const e of chosen) count[e]!++
      if (count.includes(0)) return
      const load = slots.map(() => 0)
      for (const [s, e] of chosen.entries()) load[gpuOf[s]!]! += weights[e]! / count[e]!
      least = Math.min(least, Math.max(...load))
      return
    }
    // Slots of one GPU are alike: keep them ascending.
    const from = at > 0 && gpuOf[at] === gpuOf[at - 1] ? chosen[at - 1]! : 0
    for (let e = from; e < weights.length; e++) {
      chosen[at] = e
      fill(at + 1)
    }
  }
  fill(0)
  return least
}

describe('lower bound of the peak', () => {
  it('never exceeds the optimum, and often meets it', () => {
    const random = new CounterRandom(11, STREAM.benchmark)
    let met = 0
    for (let n = 0; n < 150; n++) {
      const experts = 2 + random.below(3)
      const gpus = 2 + random.below(2)
      const slotsPerGpu = Array.from({ length: gpus }, () => 1 + random.below(3))
      while (slotsPerGpu.reduce((a, b) => a + b) < experts) slotsPerGpu[0]!++
      const dead = gpus === 3 && random.below(3) === 0 && slotsPerGpu[0]! + slotsPerGpu[1]! >= experts ? [2] : []
      const cluster = makeCluster({ gpus, slotsPerGpu, dead })
      const weights = Float64Array.from({ length: experts }, () => (random.below(5) === 0 ? 0 : random.below(30) ** 2))
      const bound = peakLowerBound(weights, cluster)
      const best = optimum(weights, cluster)
      expect(bound).toBeLessThanOrEqual(best)
      if (bound >= best * (1 - 1e-9)) met++
    }
    expect(met).toBeGreaterThan(60)
  })

  it('sees the company that the pieces of a hot expert must keep', () => {
    // One expert of 1000 over 4 GPUs of 2 slots; its replicas share GPUs with the others, 10 each: 3 pieces need 3 partners.
    const weights = Float64Array.of(1000, 10, 10, 10, 10)
    const bound = peakLowerBound(weights, makeCluster({ gpus: 4, physical: 8 }))
    expect(bound).toBeGreaterThan(259)
  })
})
