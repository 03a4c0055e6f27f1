// Counts, clusters, placements, moves and relabelling: valid ones by hand and by golden vector, bad ones by their errors.
import { readFileSync } from 'node:fs'
import { describe, expect, it } from 'vitest'
import { CounterRandom, STREAM } from '../runtime/random.js'
import { makeCluster, nodesIn, physicalOf } from './cluster.js'
import { type FlatCounts, makeCounts, stepRange, sumSteps } from './counts.js'
import { diffPlacements } from './diff.js'
import { EplbError } from './errors.js'
import { linkLoad } from './links.js'
import {
  balancednessPerStep,
  gpuLoads,
  meanBalancedness,
  physicalToLogicalCounts,
  quality,
  windowMeans,
} from './loads.js'
import { makePlacement, placementRows, trivialPlacement } from './placement.js'
import { alignSlots, relabel } from './relabel.js'

function refusal(run: () => unknown): EplbError {
  try {
    run()
  } catch (error) {
    if (error instanceof EplbError) return error
    throw error
  }
  throw new Error('it was not refused')
}

describe('counts', () => {
  it('come from one step, many steps or a flat array', () => {
    expect(makeCounts([[1, 2]])).toEqual({ steps: 1, layers: 1, experts: 2, data: Float64Array.of(1, 2) })
    const counts = makeCounts([[[1, 2]], [[3, 4]], [[5, 7]]])
    expect(Array.from(sumSteps(counts))).toEqual([9, 13])
    expect(Array.from(sumSteps(stepRange(counts, 1, 9)))).toEqual([8, 11])
    expect(makeCounts({ steps: 3, layers: 1, experts: 2, data: [1, 2, 3, 4, 5, 7] })).toEqual(counts)
  })

  it.each([
    ['no steps', [], 'SY_EPLB_COUNTS_EMPTY'],
    ['no layers', [[]], 'SY_EPLB_COUNTS_EMPTY'],
    ['no experts', [[[]]], 'SY_EPLB_COUNTS_EMPTY'],
    ['ragged experts', [[1, 2], [3]], 'SY_EPLB_COUNTS_RAGGED'],
    ['ragged layers', [[[1], [2]], [[3]]], 'SY_EPLB_COUNTS_RAGGED'],
    ['negative', [[1, -1]], 'SY_EPLB_COUNTS_VALUE'],
    ['NaN', [[1, Number.NaN]], 'SY_EPLB_COUNTS_VALUE'],
    ['infinite', [[1, Number.POSITIVE_INFINITY]], 'SY_EPLB_COUNTS_VALUE'],
    ['overflow', [[2 ** 53, 2 ** 53]], 'SY_EPLB_COUNTS_OVERFLOW'],
  ] as const)('refuses %s', (_, values, code) => {
    expect(refusal(() => makeCounts(values as unknown as number[][])).code).toBe(code)
  })

  it('says where a bad value is and what a flat array should hold', () => {
    expect(refusal(() => makeCounts([[[1, 1]], [[1, -2]]])).fields).toMatchObject({
      step: 1,
      layer: 0,
      expert: 1,
      value: -2,
    })
    const flat: FlatCounts = { steps: 2, layers: 2, experts: 2, data: [1, 2, 3] }
    expect(refusal(() => makeCounts(flat)).message).toContain(
      'hold 3 numbers, but 2 steps of 2 layers of 2 experts are 8',
    )
    expect(refusal(() => stepRange(makeCounts([[1]]), 1, 1)).code).toBe('SY_EPLB_COUNTS_EMPTY')
  })
})

describe('clusters', () => {
  it('spread slots and nodes evenly, or as told', () => {
    const even = makeCluster({ gpus: 4, nodes: 2, physical: 10, dead: [3, 1, 3] })
    expect(even).toEqual({ gpus: 4, slotsPerGpu: [3, 3, 2, 2], nodeOfGpu: [0, 0, 1, 1], dead: [1, 3] })
    const told = makeCluster({ gpus: 3, nodeOfGpu: [0, 1, 1], slotsPerGpu: [2, 0, 5] })
    expect([physicalOf(told), nodesIn(told)]).toEqual([7, 2])
  })

  it.each([
    ['no GPUs', { gpus: 0, physical: 4 }],
    ['no slots', { gpus: 2, physical: 0 }],
    ['nodes that do not divide', { gpus: 10, nodes: 4, physical: 10 }],
    ['slot counts of another length', { gpus: 2, slotsPerGpu: [1] }],
    ['a negative slot count', { gpus: 2, slotsPerGpu: [3, -1] }],
    ['slot counts with another sum', { gpus: 2, slotsPerGpu: [3, 1], physical: 5 }],
    ['nodes out of order', { gpus: 2, nodeOfGpu: [0, 2], physical: 2 }],
    ['a dead GPU that does not exist', { gpus: 2, physical: 2, dead: [2] }],
    ['nobody alive', { gpus: 2, physical: 2, dead: [0, 1] }],
  ])('refuse %s', (_, options) => {
    const error = refusal(() => makeCluster(options))
    expect(error.code).toBe('SY_EPLB_CLUSTER')
    expect(error.remedy.length).toBeGreaterThan(10)
  })
})

describe('placements', () => {
  const cluster = makeCluster({ gpus: 2, physical: 4 })

  it('hold their inverses', () => {
    const p = makePlacement([[0, 1, 2, 1]], 3, cluster)
    expect(Array.from(p.replicaCounts)).toEqual([1, 2, 1])
    expect(Array.from(p.logicalToPhysical)).toEqual([0, -1, 1, 3, 2, -1])
    expect(placementRows(trivialPlacement(2, 3, cluster))).toEqual([
      [0, 1, 2, 0],
      [0, 1, 2, 0],
    ])
  })

  it('count nothing on dead GPUs', () => {
    const p = makePlacement([[0, 1, 2, -1, 2, 0]], 3, makeCluster({ gpus: 3, physical: 6, dead: [1] }))
    expect(placementRows(p)).toEqual([[0, 1, 0, 0, 2, 0]])
    expect(Array.from(p.replicaCounts)).toEqual([2, 1, 1])
    expect(placementRows(trivialPlacement(1, 3, p.cluster))).toEqual([[0, 1, 0, 0, 2, 0]])
  })

  it.each([
    ['an expert without a slot', [[0, 1, 1, 0]], 3, 'has no live slot for expert 2'],
    ['an id out of range', [[0, 1, 2, 3]], 3, 'slot 3 holds expert 3, but experts are 0 to 2'],
    ['a negative id', [[0, 1, 2, -1]], 3, 'slot 3 holds expert -1'],
    ['a fraction', [[0, 1, 2, 0.5]], 3, 'slot 3 holds 0.5'],
    ['a short row', [[0, 1, 2]], 3, 'has 3 slots, the cluster has 4'],
    ['no layers', [], 3, 'a map of 0 entries'],
    ['too few slots', [[0, 1, 2, 3]], 5, '4 live slots cannot hold 5'],
  ])('refuse %s', (_, rows, logical, part) => {
    expect(refusal(() => makePlacement(rows, logical, cluster)).message).toContain(part)
  })
})

describe('loads', () => {
  const cluster = makeCluster({ gpus: 2, physical: 4 })
  const placement = makePlacement([[0, 1, 2, 1]], 3, cluster)
  const counts = makeCounts([[[4, 6, 5]], [[0, 2, 0]]])

  it('share an expert evenly among its replicas', () => {
    expect(Array.from(gpuLoads(placement, counts))).toEqual([8, 9])
    const q = quality(placement, counts)
    expect(q.balancedness[0]).toBeCloseTo((8.5 + 1e-5) / (9 + 1e-5), 12)
    expect(Array.from(balancednessPerStep(placement, counts))[0]).toBeCloseTo((7.5 + 1e-5) / (8 + 1e-5), 12)
    const idle = quality(placement, makeCounts([[0, 0, 0]]))
    expect([idle.balancedness[0], meanBalancedness(idle)]).toEqual([1, 1])
  })

  it('go back from slots to experts, and into windows', () => {
    expect(Array.from(physicalToLogicalCounts(Float64Array.of(1, 2, 3, 4), 1, placement).data)).toEqual([1, 6, 3])
    expect(refusal(() => physicalToLogicalCounts(new Float64Array(3), 1, placement)).code).toBe('SY_EPLB_COUNTS_SIZE')
    expect(windowMeans(Float64Array.of(1, 0, 0.5, 0.5), [2])[0]).toEqual(Float64Array.of(1, 0.5, 0.25, 0.5))
    expect(refusal(() => quality(placement, makeCounts([[1, 2]]))).code).toBe('SY_EPLB_COUNTS_MISMATCH')
  })

  it('cross nodes where a node lacks the expert', () => {
    const two = makePlacement([[0, 1, 2, 1]], 3, makeCluster({ gpus: 2, nodes: 2, physical: 4 }))
    // 0 is only in node 0, 2 only in node 1, 1 in both; half the tokens come from each node.
    const links = linkLoad(two, makeCounts([[4, 6, 10]]))
    expect(links).toEqual({ crossing: 7 / 20, ingress: [2 / 20, 5 / 20], egress: [5 / 20, 2 / 20] })
  })
})

describe('moves', () => {
  const golden = JSON.parse(
    readFileSync(
      new URL('../../test/fixtures/golden/rank-layout-padding-tbo-static-p2p.json', import.meta.url),
      'utf8',
    ),
  ) as {
    p2p: {
      old: number[]
      new: number[]
      ep: number
      gpus_per_node: number
      plan: [number, number, number, string, number | null][]
    }
  }

  it('are those of the golden plan', () => {
    const { p2p } = golden
    const cluster = makeCluster({ gpus: p2p.ep, nodes: p2p.ep / p2p.gpus_per_node, physical: p2p.old.length })
    const diff = diffPlacements(makePlacement([p2p.old], 12, cluster), makePlacement([p2p.new], 12, cluster))
    expect(diff.slots.map(s => [s.gpu, s.slot, s.logical, s.kind, s.source])).toEqual(p2p.plan)
    expect(diff.totals).toEqual({ unchanged: 7, sameGpu: 1, freeRider: 1, sameNode: 4, crossNode: 3, moves: 7 })
    expect(diff.receivedPerGpu.reduce((a, b) => a + b)).toBe(7)
    expect(diff.sentPerGpu).toEqual([1, 0, 3, 0, 2, 1, 0, 0])
  })

  it('come from a backup when every holder has died', () => {
    const before = makePlacement([[0, 1, 2, 0]], 3, makeCluster({ gpus: 4, physical: 4 }))
    const after = makePlacement([[0, 1, 0, 2]], 3, makeCluster({ gpus: 4, physical: 4, dead: [2] }))
    const diff = diffPlacements(before, after)
    expect(diff.slots.map(s => [s.slot, s.kind, s.source])).toEqual([
      [0, 'unchanged', null],
      [1, 'unchanged', null],
      [3, 'cross-node', -1],
    ])
  })
})

describe('relabelling', () => {
  const random = new CounterRandom(5, STREAM.benchmark)
  const shuffled = (n: number, logical: number) => {
    const slots = Array.from({ length: n }, (_, i) => i % logical)
    for (let i = n - 1; i > 0; i--) {
      const j = random.below(i + 1)
      ;[slots[i], slots[j]] = [slots[j]!, slots[i]!]
    }
    return slots
  }
  function* permutations(items: number[]): Generator<number[]> {
    if (items.length <= 1) yield items
    for (const [i, x] of items.entries()) for (const rest of permutations(items.toSpliced(i, 1))) yield [x, ...rest]
  }

  it.each([1, 2])('keeps as many experts as the best of all permutations (%i nodes)', nodes => {
    const cluster = makeCluster({ gpus: 4, nodes, physical: 12 })
    for (let n = 0; n < 60; n++) {
      const from = makePlacement([shuffled(12, 9)], 9, cluster)
      const to = makePlacement([shuffled(12, 9)], 9, cluster)
      const renamed = relabel(from, to, { withinNodes: nodes > 1 })
      const bins = (rows: number[]) => [0, 1, 2, 3].map(g => rows.slice(g * 3, g * 3 + 3))
      const key = (bin: number[]) => bin.toSorted((a, b) => a - b).join()
      expect(bins(placementRows(renamed)[0]!).map(key).sort()).toEqual(bins(placementRows(to)[0]!).map(key).sort())
      let least = Number.POSITIVE_INFINITY
      for (const order of permutations([0, 1, 2, 3])) {
        if (nodes > 1 && Math.floor(order[0]! / 2) !== Math.floor(order[1]! / 2)) continue
        const rows = order.flatMap(g => bins(placementRows(to)[0]!)[g]!)
        least = Math.min(least, diffPlacements(from, makePlacement([rows], 9, cluster)).totals.moves)
      }
      expect(diffPlacements(from, renamed).totals.moves).toBe(least)
    }
  })

  it('never trades GPUs of other slot counts or dead ones, and aligns slots', () => {
    const cluster = makeCluster({ gpus: 4, slotsPerGpu: [1, 2, 2, 2], dead: [3] })
    const from = makePlacement([[0, 1, 2, 3, 4, 0, 0]], 5, cluster)
    const to = makePlacement([[0, 4, 3, 2, 1, 0, 0]], 5, cluster)
    expect(placementRows(relabel(from, to))).toEqual([[0, 1, 2, 3, 4, 0, 0]])
    const apart = makePlacement([[3, 2, 1, 4, 0, 0, 0]], 5, cluster)
    expect(placementRows(relabel(from, apart))).toEqual([[3, 1, 2, 0, 4, 0, 0]])
    expect(placementRows(alignSlots(from, apart))).toEqual([[3, 1, 2, 0, 4, 0, 0]])
    expect(refusal(() => relabel(from, trivialPlacement(1, 5, makeCluster({ gpus: 4, physical: 7 })))).code).toBe(
      'SY_EPLB_PLACEMENT',
    )
  })
})
