// The contract of every balancing algorithm on 10,000 random inputs: a whole, valid placement or
// a refusal that says what to change; nothing on dead GPUs; hierarchical replicas in one node; `switchyard` serves all sizes,
// is never behind with λ = 0 and never dearer than that plan with λ > 0.
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { aliveMask, gpuOfSlots, liveSlots, makeCluster, nodesIn } from '../cluster.js'
import { makeCounts, sumSteps } from '../counts.js'
import { diffPlacements } from '../diff.js'
import { EplbError } from '../errors.js'
import { linkLoad } from '../links.js'
import { quality } from '../loads.js'
import { trivialPlacement } from '../placement.js'
import type { BalancingInput, Counts, Placement } from '../types.js'
import { algorithmChoices, getAlgorithm } from './registry.js'

const CASES = 10_000
const BLOCKS = 10

interface Shape {
  readonly nodes: number
  readonly gpusPerNode: number
  readonly perGpu: number
  readonly uneven: readonly number[]
  readonly dead: readonly number[]
  readonly groups: number
  readonly fill: number
  readonly layers: number
  readonly steps: number
  readonly seed: readonly number[]
  readonly kind: 'flat' | 'skewed' | 'sparse' | 'zero' | 'equal'
  readonly lambda: number
}

const shapes: fc.Arbitrary<Shape> = fc.record({
  nodes: fc.integer({ min: 1, max: 3 }),
  gpusPerNode: fc.integer({ min: 1, max: 3 }),
  perGpu: fc.integer({ min: 1, max: 5 }),
  uneven: fc.oneof(
    { weight: 3, arbitrary: fc.constant([]) },
    { weight: 1, arbitrary: fc.array(fc.integer({ min: -1, max: 2 }), { minLength: 1, maxLength: 4 }) },
  ),
  dead: fc.oneof(
    { weight: 3, arbitrary: fc.constant([]) },
    { weight: 1, arbitrary: fc.array(fc.nat(8), { minLength: 1, maxLength: 2 }) },
  ),
  groups: fc.integer({ min: 1, max: 4 }),
  fill: fc.double({ min: 0.2, max: 1, noNaN: true }),
  layers: fc.integer({ min: 1, max: 2 }),
  steps: fc.integer({ min: 1, max: 3 }),
  seed: fc.array(fc.integer({ min: 0, max: 1000 }), { minLength: 40, maxLength: 40 }),
  kind: fc.constantFrom('flat', 'skewed', 'sparse', 'zero', 'equal'),
  lambda: fc.constantFrom(0.01, 0.05, 0.5),
})

function inputOf(shape: Shape): BalancingInput | null {
  const gpus = shape.nodes * shape.gpusPerNode
  const slotsPerGpu = Array.from({ length: gpus }, (_, g) =>
    Math.max(0, shape.perGpu + (shape.uneven[g % Math.max(1, shape.uneven.length)] ?? 0)),
  )
  const dead = shape.dead.filter(g => g < gpus)
  if (new Set(dead).size === gpus) return null
  const cluster = makeCluster({ gpus, nodes: shape.nodes, slotsPerGpu, dead })
  const live = liveSlots(cluster)
  if (live === 0) return null
  // Whole groups most of the time, so that the hierarchical algorithms have something to do.
  const experts = Math.max(1, Math.min(live, Math.ceil((shape.fill * live) / shape.groups) * shape.groups))
  const counts = makeCounts({
    steps: shape.steps,
    layers: shape.layers,
    experts,
    data: valuesOf(shape, shape.steps * shape.layers * experts),
  })
  return { counts, cluster, groups: shape.groups }
}

function valuesOf({ kind, seed }: Shape, n: number): number[] {
  return Array.from({ length: n }, (_, i) => {
    const x = seed[i % seed.length]! + (i % 7)
    if (kind === 'flat') return x
    if (kind === 'skewed') return Math.round((x / 1000) ** 4 * 100_000)
    if (kind === 'sparse') return x % 3 === 0 ? x : 0
    return kind === 'zero' ? 0 : 17
  })
}

function checkWhole(placement: Placement, { cluster }: BalancingInput): void {
  const { layers, logical, physical, maxReplicas, physicalToLogical, logicalToPhysical, replicaCounts } = placement
  const alive = aliveMask(cluster)
  const gpuOf = gpuOfSlots(cluster)
  for (let l = 0; l < layers; l++) {
    let slots = 0
    for (let e = 0; e < logical; e++) {
      const at = l * logical + e
      const held = Array.from(logicalToPhysical.subarray(at * maxReplicas, (at + 1) * maxReplicas)).filter(s => s >= 0)
      if (held.length === 0 || held.length !== replicaCounts[at] || new Set(held).size !== held.length)
        throw new Error(`replicas of expert ${e}`)
      for (const s of held)
        if (!alive[gpuOf[s]!] || physicalToLogical[l * physical + s] !== e) throw new Error(`slot ${s} of expert ${e}`)
      slots += held.length
    }
    if (slots !== liveSlots(cluster)) throw new Error(`${slots} slots in use`)
  }
}

function checkOneNode(placement: Placement): void {
  const { layers, logical, physical, physicalToLogical, cluster } = placement
  const gpuOf = gpuOfSlots(cluster)
  for (let l = 0; l < layers; l++) {
    const nodeOf = new Int32Array(logical).fill(-1)
    for (let p = 0; p < physical; p++) {
      const e = physicalToLogical[l * physical + p]!
      const node = cluster.nodeOfGpu[gpuOf[p]!]!
      if (nodeOf[e]! >= 0 && nodeOf[e] !== node) throw new Error(`expert ${e} is in two nodes`)
      nodeOf[e] = node
    }
  }
}

/** Sum over loaded layers of peak / mean, plus λ times moved slots and crossing traffic: what switchyard minimises. */
function cost(placement: Placement, counts: Counts, current: Placement, lambda: number, linkWeight: number): number {
  const q = quality(placement, counts)
  const weights = sumSteps(counts)
  let sum = 0
  for (let l = 0; l < counts.layers; l++) {
    const range = [l * counts.experts, (l + 1) * counts.experts] as const
    if (q.mean[l] === 0) continue
    const one = makeCounts({
      steps: 1,
      layers: counts.layers,
      experts: counts.experts,
      data: weights.map((w, i) => (i >= range[0] && i < range[1] ? w : 0)),
    })
    const moved = diffPlacements(current, placement).slots.filter(s => s.layer === l && s.kind.endsWith('-node')).length
    const holding = q.peak[l]! / q.mean[l]!
    sum += holding + lambda * (moved / liveSlots(placement.cluster) + linkWeight * linkLoad(placement, one).crossing)
  }
  return sum
}

function checkCase(shape: Shape): Record<string, number> {
  const input = inputOf(shape)
  const planned: Record<string, number> = {}
  if (!input) return planned
  const { counts, cluster } = input
  const best = getAlgorithm('switchyard').plan({ ...input, lambda: 0 }).placement
  const own = quality(best, counts)
  for (const { name } of algorithmChoices()) {
    let placement: Placement
    try {
      placement = name === 'switchyard' ? best : getAlgorithm(name).plan(input).placement
    } catch (error) {
      if (!(error instanceof EplbError)) throw error
      if (error.remedy.includes('{')) throw new Error(`unfilled remedy: ${error.remedy}`)
      continue
    }
    planned[name] = 1
    checkWhole(placement, input)
    if (name.endsWith('_hierarchical') && cluster.dead.length === 0) checkOneNode(placement)
    const q = quality(placement, counts)
    for (let l = 0; l < counts.layers; l++) {
      if (own.peak[l]! > q.peak[l]! * (1 + 1e-9))
        throw new Error(`switchyard ${own.peak[l]} behind ${name} ${q.peak[l]}`)
      if (q.lowerBound[l]! > q.peak[l]!) throw new Error(`bound ${q.lowerBound[l]} above peak ${q.peak[l]} of ${name}`)
    }
  }
  // From a placement in effect, made when every GPU was alive if there was room.
  const current = trivialPlacement(counts.layers, counts.experts, makeCluster({ ...cluster, dead: [] }))
  const settings = { ...input, current, lambda: shape.lambda, linkWeight: 0.5 }
  const { placement } = getAlgorithm('switchyard').plan(settings)
  checkWhole(placement, input)
  const free = getAlgorithm('switchyard').plan({ ...settings, lambda: 0 }).placement
  checkWhole(free, input)
  const price = (p: Placement) => cost(p, counts, current, shape.lambda, 0.5)
  if (price(placement) > price(free) + 1e-9)
    throw new Error(`λ plan costs ${price(placement)}, the free one ${price(free)}`)
  if (nodesIn(cluster) === 1 && placement.version !== 1) throw new Error('version')
  return planned
}

describe('every algorithm on random inputs', () => {
  it.each(Array.from({ length: BLOCKS }, (_, block) => block))(
    `block %i of ${BLOCKS}, ${CASES / BLOCKS} cases`,
    block => {
      const planned: Record<string, number> = {}
      fc.assert(
        fc.property(shapes, shape => {
          for (const name of Object.keys(checkCase(shape))) planned[name] = (planned[name] ?? 0) + 1
        }),
        { numRuns: CASES / BLOCKS, seed: 20261129 + block },
      )
      // The cases must not be mostly refusals.
      for (const { name } of algorithmChoices()) expect(planned[name], name).toBeGreaterThan(CASES / BLOCKS / 12)
    },
    120_000,
  )
})
