// `lp` replica choice: how the replicas of each expert should share its tokens so that the peak GPU load is least. It is a
// linear program of a special form (sharing loads over allowed GPUs), solved exactly: the least peak is the greatest
// load(S) / |GPUs that S can reach| over sets S of experts, found by Newton steps over minimum cuts.
import { aliveMask, gpuOfSlots } from '../cluster.js'
import { EplbError } from '../errors.js'
import type { Placement } from '../types.js'

/** Rest below this share of the total counts as placed. */
const NEGLIGIBLE = 1e-13

export interface LeastPeak {
  /** Peak GPU load, in tokens. */
  readonly peak: number
  /** [physical] tokens for every slot; slots of dead GPUs 0. */
  readonly share: Float64Array
}

interface Movable {
  readonly expert: number
  readonly gpus: readonly number[]
  /** Load put on each of `gpus`. */
  readonly flow: Float64Array
  rest: number
}

/**
 * The split of expert loads [logical] over a layer's replicas with the least peak GPU load. Replicas on one GPU share its
 * part evenly.
 * @throws EplbError SY_EPLB_COUNTS_SIZE when `weights` has another length.
 */
export function leastPeakShares(placement: Placement, layer: number, weights: ArrayLike<number>): LeastPeak {
  const { logical, physical, cluster, physicalToLogical } = placement
  if (weights.length !== logical)
    throw new EplbError('SY_EPLB_COUNTS_SIZE', {
      found: weights.length,
      steps: 1,
      layers: 1,
      experts: logical,
      expected: logical,
    })
  const alive = aliveMask(cluster)
  const gpuOf = gpuOfSlots(cluster)
  const held: number[][] = Array.from({ length: logical }, () => [])
  for (let p = 0; p < physical; p++) if (alive[gpuOf[p]!]) held[physicalToLogical[layer * physical + p]!]!.push(p)

  const load = new Float64Array(cluster.gpus)
  const movable: Movable[] = []
  let total = 0
  for (let e = 0; e < logical; e++) {
    const weight = weights[e]!
    const gpus = [...new Set(held[e]!.map(p => gpuOf[p]!))]
    total += weight
    if (gpus.length === 1) load[gpus[0]!]! += weight
    else movable.push({ expert: e, gpus, flow: new Float64Array(gpus.length), rest: weight })
  }
  const peak = levelled(load, movable, total, cluster.gpus - cluster.dead.length)
  const onGpu = new Map(movable.map(m => [m.expert, m]))
  const share = new Float64Array(physical)
  for (let e = 0; e < logical; e++) {
    const m = onGpu.get(e)
    for (const p of held[e]!) {
      const here = held[e]!.filter(q => gpuOf[q] === gpuOf[p]).length
      share[p] = (m ? m.flow[m.gpus.indexOf(gpuOf[p]!)]! : weights[e]!) / here
    }
  }
  return { peak, share }
}

/** Raises the common ceiling from its lower bound until every load fits; fills `load` and the flows. Returns the peak. */
function levelled(load: Float64Array, movable: Movable[], total: number, gpus: number): number {
  const fixed = load.slice()
  const least = total * NEGLIGIBLE
  let ceiling = Math.max(total / gpus, ...fixed)
  while (true) {
    const cut = fill(load, movable, ceiling, least)
    if (cut === null) break
    // All GPUs the stuck experts can reach are full: they need at least their common mean.
    let needed = 0
    for (const m of cut.experts) needed += m.rest + m.flow.reduce((a, b) => a + b, 0)
    for (const g of cut.gpus) needed += fixed[g]!
    const next = needed / cut.gpus.length
    if (!(next > ceiling * (1 + NEGLIGIBLE))) break
    ceiling = next
  }
  // What rounding left over goes to the emptiest GPU that has the expert.
  for (const m of movable) {
    if (m.rest <= 0) continue
    let to = 0
    for (let i = 1; i < m.gpus.length; i++) if (load[m.gpus[i]!]! < load[m.gpus[to]!]!) to = i
    m.flow[to]! += m.rest
    load[m.gpus[to]!]! += m.rest
    m.rest = 0
  }
  return load.reduce((a, b) => Math.max(a, b), 0)
}

interface Cut {
  readonly experts: readonly Movable[]
  readonly gpus: readonly number[]
}

/** Pushes rests along shortest augmenting paths until none is left (null) or none can move: then the sets they reach. */
function fill(load: Float64Array, movable: Movable[], ceiling: number, least: number): Cut | null {
  while (true) {
    const starts = movable.filter(m => m.rest > least)
    if (starts.length === 0) return null
    const cut = augment(load, movable, starts, ceiling, least)
    if (cut) return cut
  }
}

function augment(
  load: Float64Array,
  movable: Movable[],
  starts: Movable[],
  ceiling: number,
  least: number,
): Cut | null {
  const queue = [...starts]
  const seen = new Set(queue)
  /** For a GPU: who reached it, over which of its edges. For an expert: the GPU whose flow it could take back. */
  const into = new Map<number, { from: Movable; edge: number }>()
  const back = new Map<Movable, { gpu: number; edge: number }>()
  for (const m of queue) {
    for (const [edge, gpu] of m.gpus.entries()) {
      if (into.has(gpu)) continue
      into.set(gpu, { from: m, edge })
      if (ceiling - load[gpu]! > least) {
        push(load, gpu, into, back, ceiling)
        return null
      }
      for (const other of movable) {
        if (seen.has(other)) continue
        const at = other.gpus.indexOf(gpu)
        if (at < 0 || other.flow[at]! <= least) continue
        seen.add(other)
        back.set(other, { gpu, edge: at })
        queue.push(other)
      }
    }
  }
  return { experts: queue, gpus: [...into.keys()] }
}

/** Moves as much as the path to `end` allows: from a rest, through flows that are taken back, to the spare room. */
function push(
  load: Float64Array,
  end: number,
  into: ReadonlyMap<number, { from: Movable; edge: number }>,
  back: ReadonlyMap<Movable, { gpu: number; edge: number }>,
  ceiling: number,
): void {
  const path: { m: Movable; add: number; take: { gpu: number; edge: number } | undefined }[] = []
  let amount = ceiling - load[end]!
  let gpu = end
  while (true) {
    const { from, edge } = into.get(gpu)!
    const take = back.get(from)
    path.push({ m: from, add: edge, take })
    amount = Math.min(amount, take ? from.flow[take.edge]! : from.rest)
    if (!take) break
    gpu = take.gpu
  }
  for (const { m, add, take } of path) {
    m.flow[add]! += amount
    if (take) m.flow[take.edge]! -= amount
    else m.rest -= amount
  }
  load[end]! += amount
}

/**
 * Picks an index by weights: the first c whose running sum exceeds u · sum, u in [0, 1); evenly when all are 0 (SGLang's
 * rule for drawing from the shares).
 */
export function sampleShare(shares: ArrayLike<number>, u: number): number {
  let sum = 0
  for (let i = 0; i < shares.length; i++) sum += Math.max(shares[i]!, 0)
  if (sum === 0) return Math.min(shares.length - 1, Math.floor(u * shares.length))
  let running = 0
  let last = 0
  for (let i = 0; i < shares.length; i++) {
    if (shares[i]! <= 0) continue
    running += shares[i]!
    last = i
    if (running > u * sum) return i
  }
  return last
}
