// Every golden vector of the public PyTorch implementations (test/fixtures/golden), bit for bit, refusals included.
import { readFileSync } from 'node:fs'
import { gunzipSync } from 'node:zlib'
import { describe, expect, it } from 'vitest'
import { makeCluster } from '../cluster.js'
import { makeCounts } from '../counts.js'
import { EplbError } from '../errors.js'
import { meanBalancedness, quality } from '../loads.js'
import { placementRows, trivialPlacement } from '../placement.js'
import type { AlgorithmChoice, BalancingInput, Placement } from '../types.js'
import { getAlgorithm } from './registry.js'

const golden = (file: string) => readFileSync(new URL(`../../../test/fixtures/golden/${file}`, import.meta.url))

interface Output {
  readonly p2l?: number[][]
  readonly count?: number[][]
  readonly dead?: number
  readonly error?: string
}
interface Case {
  readonly load: string
  readonly weight: number[][]
  readonly num_physical: number
  readonly num_groups: number
  readonly num_nodes: number
  readonly num_gpus: number
  readonly [algorithm: string]: Output | string | number | number[][]
}

const cases = JSON.parse(gunzipSync(golden('eplb-algorithms.json.gz')).toString()) as Case[]
const outputs: Record<string, AlgorithmChoice> = {
  deepseek_eplb: 'auto',
  deepseek: 'deepseek',
  deepseek_hierarchical: 'deepseek_hierarchical',
  deepseek_vec: 'deepseek_vec',
  deepseek_vec_hierarchical: 'deepseek_vec_hierarchical',
  elasticity_aware_one_dead: 'elasticity_aware',
}

function counted(placement: Placement): number[][] {
  const { layers, logical, replicaCounts } = placement
  return Array.from({ length: layers }, (_, l) => Array.from(replicaCounts.subarray(l * logical, (l + 1) * logical)))
}

describe.each(
  cases.map((c, i) => ({ c, title: `${i}: ${c.load} ${c.weight[0]!.length} → ${c.num_physical} on ${c.num_gpus}` })),
)('$title', ({ c }) => {
  it.each(Object.entries(outputs))('%s', (key, name) => {
    const want = c[key] as Output
    const vec = name.startsWith('deepseek_vec')
    const steps = vec
      ? [c.weight, c.weight.map(r => r.map(w => Math.floor((3 * w + 1) / 2))), c.weight.map(r => r.toReversed())]
      : [c.weight]
    // deepseek-ai/EPLB is also happy with nodes that the cluster does not divide into; our clusters are checked earlier.
    const cluster = makeCluster({
      gpus: c.num_gpus,
      nodes: c.num_nodes,
      physical: c.num_physical,
      dead: want.dead === undefined ? (key === 'elasticity_aware_one_dead' ? [c.num_gpus / 2] : []) : [want.dead],
    })
    const input: BalancingInput = { counts: makeCounts(steps), cluster, groups: c.num_groups }
    if (want.error !== undefined) {
      expect(() => getAlgorithm(name).plan(input)).toThrow(EplbError)
      return
    }
    const { placement } = getAlgorithm(name).plan(input)
    expect(placementRows(placement)).toEqual(want.p2l)
    expect(counted(placement)).toEqual(want.count)
  })
})

describe("deepseek-ai/EPLB's README example", () => {
  const readme = JSON.parse(golden('eplb-readme.json').toString()) as {
    weight: number[][]
    hierarchical: { p2l: number[][]; l2p: number[][][]; count: number[][] }
    flat: { p2l: number[][]; l2p: number[][][]; count: number[][] }
  }
  const cluster = makeCluster({ gpus: 8, nodes: 2, physical: 16 })
  const counts = makeCounts(readme.weight)
  const input = { counts, cluster, groups: 4 }

  it.each([
    ['deepseek_hierarchical', readme.hierarchical, [0.8277, 0.805]],
    ['deepseek', readme.flat, [0.9323, 0.8401]],
  ] as const)('%s: maps, inverses and balancedness', (name, want, balancedness) => {
    const { placement } = getAlgorithm(name).plan(input)
    expect(placementRows(placement)).toEqual(want.p2l)
    const inverse = Array.from({ length: 2 }, (_, l) =>
      Array.from({ length: 12 }, (_, e) =>
        Array.from(
          placement.logicalToPhysical.subarray(
            (l * 12 + e) * placement.maxReplicas,
            (l * 12 + e + 1) * placement.maxReplicas,
          ),
        ),
      ),
    )
    expect(inverse).toEqual(want.l2p)
    for (const [l, b] of balancedness.entries()) expect(quality(placement, counts).balancedness[l]).toBeCloseTo(b, 4)
  })

  it('deepseek_vec and the trivial placement', () => {
    expect(placementRows(getAlgorithm('deepseek_vec').plan(input).placement)).toEqual([
      [10, 7, 10, 6, 0, 2, 11, 4, 5, 4, 5, 9, 8, 3, 1, 1],
      [1, 10, 2, 4, 5, 0, 5, 11, 6, 3, 6, 7, 8, 7, 9, 8],
    ])
    const q = quality(trivialPlacement(2, 12, cluster), counts)
    expect(q.balancedness[0]).toBeCloseTo(0.48, 4)
    expect(q.balancedness[1]).toBeCloseTo(0.4201, 4)
    expect(meanBalancedness(q)).toBeCloseTo((q.balancedness[0]! + q.balancedness[1]!) / 2, 12)
  })
})
