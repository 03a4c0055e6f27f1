// Replica choice against its references: golden static maps and MT19937 words, and HiGHS for the least peak.
import { readFileSync } from 'node:fs'
import highsLoader, { type Highs } from 'highs'
import { describe, expect, it } from 'vitest'
import { CounterRandom, STREAM } from '../../runtime/random.js'
import { gpuOfSlots, makeCluster } from '../cluster.js'
import { makePlacement } from '../placement.js'
import type { Placement } from '../types.js'
import { dynamicReplica, fakeRouterLogits } from './dynamic.js'
import { leastPeakShares, sampleShare } from './least-peak.js'
import { PythonRandom } from './mersenne.js'
import { candidatesOf, collapsedStaticRow, fairChoices, staticReplicaMap } from './static.js'

// The package's types describe a CommonJS default; at run time the import is the function itself.
const loadHighs = highsLoader as unknown as () => Promise<Highs>

const golden = <T>(file: string): T =>
  JSON.parse(readFileSync(new URL(`../../../test/fixtures/golden/${file}`, import.meta.url), 'utf8')) as T

interface StaticMap {
  readonly p2l: number[][]
  readonly ep: number
  readonly nnodes: number
  readonly map: number[][][]
}
const vectors = golden<{
  static_uncollapsed: StaticMap
  static_uncollapsed_1node: StaticMap
  mt: { first5_u32: number[]; fair: number[][] }
}>('rank-layout-padding-tbo-static-p2p.json')
const flat = golden<{ p2l: number[][]; ep: number; maps: Record<string, number[][][]> }>('static-map-flat.json')

describe('PythonRandom', () => {
  it('gives the words and the fair choices of random.Random(42)', () => {
    const words = new PythonRandom(42)
    expect(vectors.mt.first5_u32.map(() => words.u32())).toEqual(vectors.mt.first5_u32)
    const random = new PythonRandom(42)
    expect(fairChoices([1, 5, 9], 8, random)).toEqual(vectors.mt.fair[0])
    expect(fairChoices([0, 7], 4, random)).toEqual(vectors.mt.fair[1])
  })
})

const nested = (map: Int32Array, ranks: number): number[][][] =>
  Array.from({ length: ranks }, (_, r) =>
    [0, 1].map(l => Array.from(map.subarray((r * 2 + l) * 12, (r * 2 + l + 1) * 12))),
  )

describe('static choice', () => {
  it.each(['static_uncollapsed', 'static_uncollapsed_1node'] as const)('%s', key => {
    const want = vectors[key]
    const placement = makePlacement(want.p2l, 12, makeCluster({ gpus: want.ep, nodes: want.nnodes, physical: 16 }))
    expect(nested(staticReplicaMap(placement), want.ep)).toEqual(want.map)
  })

  it.each(Object.keys(flat.maps))('flat placement, %s', key => {
    const nodes = Number(key.split('_')[1])
    const placement = makePlacement(flat.p2l, 12, makeCluster({ gpus: flat.ep, nodes, physical: 16 }))
    expect(nested(staticReplicaMap(placement), flat.ep)).toEqual(flat.maps[key])
  })

  it('collapses to the GPU, then to the node where it narrows, and draws the rest', () => {
    // Expert 0 is on GPUs 0, 2 and 3 (nodes 0, 1, 1); expert 1 on GPUs 1, 2 (nodes 0, 1); expert 2 on GPUs 0 and 1 (node 0).
    const placement = makePlacement([[0, 2, 1, 2, 0, 1, 0, 3]], 4, makeCluster({ gpus: 4, nodes: 2, physical: 8 }))
    expect(Array.from(collapsedStaticRow(placement, 0))).toEqual([0, 2, 1, 7])
    expect(Array.from(collapsedStaticRow(placement, 1)).slice(0, 3)).toEqual([0, 2, 3])
    const last = collapsedStaticRow(placement, 3)
    expect([last[0], last[1], last[3]]).toEqual([6, 5, 7])
    expect([1, 3]).toContain(last[2])
  })
})

describe('dynamic choice', () => {
  it('depends on layer, expert, request and position only, and is even', () => {
    for (const replicas of [2, 3, 7]) {
      const hits = new Int32Array(replicas)
      for (let request = 0; request < 40; request++)
        for (let position = 0; position < 100; position++) hits[dynamicReplica(3, 17, request, position, replicas)]!++
      const mean = 4000 / replicas
      // Chi-square with at most 6 degrees of freedom: 30 is beyond the 99.99th percentile.
      expect(hits.reduce((sum, h) => sum + (h - mean) ** 2 / mean, 0)).toBeLessThan(30)
    }
    expect(dynamicReplica(1, 2, 3, 4, 5)).toBe(dynamicReplica(1, 2, 3, 4, 5))
    const by = (f: (i: number) => number) => new Set(Array.from({ length: 64 }, (_, i) => f(i))).size
    expect(by(i => dynamicReplica(i, 2, 3, 4, 16))).toBeGreaterThan(8)
    expect(by(i => dynamicReplica(1, i, 3, 4, 16))).toBeGreaterThan(8)
    expect(by(i => dynamicReplica(1, 2, i, 4, 16))).toBeGreaterThan(8)
    expect(by(i => dynamicReplica(1, 2, 3, i, 16))).toBeGreaterThan(8)
  })

  it('fake logits lie in [5, 10) and load experts evenly', () => {
    const logits = new Float32Array(16)
    const hits = new Int32Array(16)
    for (let position = 0; position < 3200; position++) {
      fakeRouterLogits(2, 9, position, logits)
      expect(logits.every(x => x >= 5 && x <= 10)).toBe(true)
      hits[logits.indexOf(Math.max(...logits))]!++
    }
    expect(hits.reduce((sum, h) => sum + (h - 200) ** 2 / 200, 0)).toBeLessThan(50)
  })
})

function randomCase(random: CounterRandom): { placement: Placement; weights: number[] } {
  const gpus = 2 + random.below(6)
  const logical = 2 + random.below(14)
  const perGpu = Math.ceil(logical / gpus) + random.below(4)
  const slots = Array.from({ length: gpus * perGpu }, (_, i) => (i < logical ? i : random.below(logical)))
  for (let i = slots.length - 1; i > 0; i--) {
    const j = random.below(i + 1)
    ;[slots[i], slots[j]] = [slots[j]!, slots[i]!]
  }
  const weights = Array.from({ length: logical }, () => (random.below(4) === 0 ? 0 : random.below(1000)))
  return { placement: makePlacement([slots], logical, makeCluster({ gpus, physical: slots.length })), weights }
}

describe('least peak', () => {
  it('is the optimum of the linear program (HiGHS) on 300 random placements', async () => {
    const highs = await loadHighs()
    const random = new CounterRandom(7, STREAM.benchmark)
    for (let n = 0; n < 300; n++) {
      const { placement, weights } = randomCase(random)
      const gpuOf = gpuOfSlots(placement.cluster)
      const { peak, share } = leastPeakShares(placement, 0, weights)
      const load = new Float64Array(placement.cluster.gpus)
      for (const [slot, s] of share.entries()) {
        expect(s).toBeGreaterThanOrEqual(0)
        load[gpuOf[slot]!]! += s
      }
      for (const [e, w] of weights.entries())
        expect(candidatesOf(placement, 0, e).reduce((sum, slot) => sum + share[slot]!, 0)).toBeCloseTo(w, 8)
      expect(Math.max(...load)).toBeCloseTo(peak, 8)
      const lp = ['Minimize', ' obj: m', 'Subject To']
      for (const [e, w] of weights.entries())
        lp.push(
          ` e${e}: ${candidatesOf(placement, 0, e)
            .map(s => `x${s}`)
            .join(' + ')} = ${w}`,
        )
      for (let g = 0; g < load.length; g++)
        lp.push(
          ` g${g}: ${[...gpuOf.keys()]
            .filter(s => gpuOf[s] === g)
            .map(s => `x${s}`)
            .join(' + ')} - m <= 0`,
        )
      lp.push('End')
      const solved = highs.solve(lp.join('\n'))
      expect(solved.Status).toBe('Optimal')
      expect(Math.abs(peak - solved.ObjectiveValue)).toBeLessThanOrEqual(1e-6 * Math.max(1, peak))
    }
  })

  it('draws by running sums, evenly when there is nothing to go by', () => {
    expect([0, 0.24, 0.26, 0.99].map(u => sampleShare([1, 0, 3], u))).toEqual([0, 0, 2, 2])
    expect([0, 0.5, 0.99].map(u => sampleShare([0, 0, 0], u))).toEqual([0, 1, 2])
  })
})
