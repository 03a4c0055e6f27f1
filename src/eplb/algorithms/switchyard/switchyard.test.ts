// What switchyard promises beyond the contract: few moves for nearly all of the balance over a run, unequal slots, dead GPUs,
// determinism. Drifts are seeded and synthetic; the demo load is a recording (test/fixtures/recorder-dumps).
import { describe, expect, it } from 'vitest'
import { readExpertLoad } from '../../../formats/expert-load/index.js'
import { type ClusterOptions, gpuOfSlots, makeCluster } from '../../cluster.js'
import { makeCounts, stepRange } from '../../counts.js'
import { diffPlacements } from '../../diff.js'
import { EplbError } from '../../errors.js'
import { meanBalancedness, quality } from '../../loads.js'
import { placementRows, trivialPlacement } from '../../placement.js'
import { relabel } from '../../relabel.js'
import { type Drift, syntheticCounts } from '../../synthetic.js'
import type { AlgorithmName, Counts } from '../../types.js'
import { getAlgorithm } from '../registry.js'

const PERIOD = 20
const OTHERS: readonly AlgorithmName[] = [
  'deepseek',
  'deepseek_hierarchical',
  'deepseek_vec',
  'deepseek_vec_hierarchical',
]

const demo = (): Counts => {
  const file = new URL(
    '../../../../test/fixtures/recorder-dumps/expert_distribution_recorder_1764420000.0.pt',
    import.meta.url,
  )
  const load = readExpertLoad([file.pathname])
  return makeCounts({ steps: load.steps, layers: load.layers, experts: load.logical, data: load.counts })
}
const drifting = (drift: Drift, seed: number): Counts =>
  syntheticCounts({ seed, drift, steps: 300, layers: 3, experts: 64, pairs: 8192 })

/** Plans every 20 steps from the last 20, each from the plan before: summed balancedness on the planned windows, and moves. */
function run(counts: Counts, options: ClusterOptions, name: AlgorithmName, lambda?: number) {
  let current = trivialPlacement(counts.layers, counts.experts, makeCluster(options))
  let balancedness = 0
  let moves = 0
  for (let step = PERIOD; step < counts.steps; step += PERIOD) {
    const seen = stepRange(counts, step - PERIOD, step)
    const input = {
      counts: seen,
      cluster: current.cluster,
      groups: 8,
      current,
      ...(lambda === undefined ? {} : { lambda }),
    }
    const { placement } = getAlgorithm(name).plan(input)
    const planned =
      name === 'switchyard' ? placement : relabel(current, placement, { withinNodes: name.endsWith('hierarchical') })
    moves += diffPlacements(current, planned).totals.moves
    balancedness += meanBalancedness(quality(planned, seen))
    current = planned
  }
  return { balancedness, moves }
}

describe('over a run, with the default λ', () => {
  it.each([
    ['the recorded demo load', demo, { gpus: 8, nodes: 2, physical: 40 }],
    ['a walk', () => drifting('walk', 1), { gpus: 8, nodes: 2, physical: 80 }],
    ['a shift', () => drifting('shift', 2), { gpus: 8, nodes: 2, physical: 80 }],
    ['bursts', () => drifting('burst', 3), { gpus: 8, nodes: 2, physical: 80 }],
    ['the demo load on more GPUs', demo, { gpus: 16, nodes: 2, physical: 48 }],
    ['a shift on more GPUs', () => drifting('shift', 2), { gpus: 16, nodes: 2, physical: 80 }],
  ])(
    '%s: at least 0.99 of the free balance with at most half the moves of any other',
    (_, load, options) => {
      const counts = load()
      const free = run(counts, options, 'switchyard', 0)
      const ours = run(counts, options, 'switchyard')
      const others = OTHERS.map(name => run(counts, options, name))
      for (const other of others) {
        expect(free.balancedness).toBeGreaterThanOrEqual(other.balancedness)
        expect(ours.balancedness).toBeGreaterThan(other.balancedness)
        expect(ours.moves).toBeLessThanOrEqual(other.moves / 2)
      }
      expect(ours.balancedness).toBeGreaterThanOrEqual(0.99 * free.balancedness)
    },
    60_000,
  )
})

describe('switchyard', () => {
  const counts = syntheticCounts({ seed: 4, drift: 'steady', steps: 2, layers: 2, experts: 30, pairs: 4096 })

  it('serves unequal slots and dead GPUs, where all others refuse', () => {
    const cluster = makeCluster({ gpus: 5, slotsPerGpu: [9, 8, 7, 8, 9], dead: [2] })
    const input = { counts, cluster, lambda: 0 }
    for (const name of [...OTHERS, 'elasticity_aware'] as const)
      expect(() => getAlgorithm(name).plan(input)).toThrow(EplbError)
    const { placement } = getAlgorithm('switchyard').plan(input)
    const q = quality(placement, counts)
    expect(meanBalancedness(q)).toBeGreaterThan(0.99)
    const gpuOf = gpuOfSlots(cluster)
    expect([...placement.logicalToPhysical].filter(s => s >= 0 && gpuOf[s] === 2)).toEqual([])
  })

  it('gives the same plan for the same input, and leaves a good placement alone', () => {
    const input = { counts, cluster: makeCluster({ gpus: 6, nodes: 2, physical: 36 }) }
    const first = getAlgorithm('switchyard').plan({ ...input, lambda: 0 }).placement
    expect(placementRows(getAlgorithm('switchyard').plan({ ...input, lambda: 0 }).placement)).toEqual(
      placementRows(first),
    )
    const again = getAlgorithm('switchyard').plan({ ...input, current: first, lambda: 1000 }).placement
    expect(placementRows(again)).toEqual(placementRows(first))
    expect(again.version).toBe(first.version + 1)
  })

  it('spends fewer moves the more they cost', () => {
    const cluster = makeCluster({ gpus: 6, nodes: 2, physical: 36 })
    const current = trivialPlacement(2, 30, cluster)
    const moves = [0, 0.01, 0.1, 1, 100].map(
      lambda =>
        diffPlacements(current, getAlgorithm('switchyard').plan({ counts, cluster, current, lambda }).placement).totals
          .moves,
    )
    expect(moves.toSorted((a, b) => b - a)).toEqual(moves)
    expect(moves.at(-1)).toBe(0)
    expect(moves[0]).toBeGreaterThan(10)
  })

  it('keeps an expert whose GPUs all died, and what the living held', () => {
    const before = makeCluster({ gpus: 6, nodes: 2, physical: 36 })
    const current = getAlgorithm('switchyard').plan({ counts, cluster: before, lambda: 0 }).placement
    const after = makeCluster({ gpus: 6, nodes: 2, physical: 36, dead: [4] })
    const { placement } = getAlgorithm('switchyard').plan({ counts, cluster: after, current })
    expect(placement.replicaCounts.every(c => c > 0)).toBe(true)
    expect(diffPlacements(current, placement).totals.moves).toBeLessThan(30)
  })

  it('prefers other nodes for replicas when traffic has a price', () => {
    const cluster = makeCluster({ gpus: 6, nodes: 2, physical: 42 })
    const spread = (linkWeight: number) => {
      const { placement } = getAlgorithm('switchyard').plan({ counts, cluster, lambda: 0.2, linkWeight })
      const gpuOf = gpuOfSlots(cluster)
      let pairs = 0
      for (let e = 0; e < 60; e++) {
        const slots = [
          ...placement.logicalToPhysical.subarray(e * placement.maxReplicas, (e + 1) * placement.maxReplicas),
        ].filter(s => s >= 0)
        pairs += new Set(slots.map(s => cluster.nodeOfGpu[gpuOf[s]!])).size - 1
      }
      return pairs
    }
    expect(spread(1)).toBeGreaterThan(spread(0))
  })

  it('refuses prices that are none', () => {
    const input = { counts, cluster: makeCluster({ gpus: 6, physical: 36 }) }
    expect(() => getAlgorithm('switchyard').plan({ ...input, lambda: -1 })).toThrow(/lambda is -1/)
    expect(() => getAlgorithm('switchyard').plan({ ...input, linkWeight: Number.NaN })).toThrow(/linkWeight is NaN/)
    expect(() => getAlgorithm('best').plan(input)).toThrow(/no balancing algorithm named best/)
  })
})
