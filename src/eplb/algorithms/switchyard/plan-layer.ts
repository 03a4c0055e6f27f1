// The search on one layer, in two parts: the lowest peak whatever it takes, and the cheapest plan when moves and traffic have
// a price. Deterministic, with effort counted in steps.
import { peakLowerBound } from '../../lower-bound.js'
import type { Cluster } from '../../types.js'
import { descend } from './descend.js'
import { explore } from './explore.js'
import { follow } from './follow.js'
import { type LayerFrame, LayerState, type Prices } from './layer-state.js'
import { settle } from './settle.js'
import { greedyStart, repairedStart } from './start.js'

/** Steps of any one descent or settling: far more than they take, so that odd inputs end too. */
const LIMIT = 5000
/** A peak this close to the bound is good enough to stop exploring. */
const CLOSE = 1e-4

/**
 * Steps of exploration: few on tiny layers, which have few plans, and few on large ones, where a step costs more and the
 * descent alone gets closer.
 */
const effort = (slots: number): number => Math.max(30, Math.min(400, 10 * slots, Math.round(18000 / slots)))

/** The lowest peak from a greedy plan and from another plan, if there is one; never above the latter's. */
export function lowestPeak(
  frame: LayerFrame,
  other: Int32Array | null,
  weights: Float64Array,
  cluster: Cluster,
): Int32Array {
  const floor = frame.idle ? 0 : peakLowerBound(weights, cluster) * (1 + CLOSE)
  const state = new LayerState(frame, greedyStart(frame))
  descend(state, floor, LIMIT)
  if (other) {
    const second = new LayerState(frame, other)
    const before = second.peak()
    // Worth a descent of its own only where sizes are small or the greedy plan ended behind.
    if (other.length <= 128 || before < state.peak()) {
      descend(second, floor, LIMIT)
      if (second.peak() < state.peak()) state.reset(second.expertAt)
    }
  }
  if (!frame.idle) explore(state, floor, effort(frame.gpuOf.length))
  return state.expertAt
}

/** The plan with the least peak / mean + λ · (moves / slots + linkWeight · crossing) among starts and what lies near them. */
export function cheapest(
  frame: LayerFrame,
  starts: readonly Int32Array[],
  current: Int32Array | null,
  lambda: number,
  linkWeight: number,
): Int32Array {
  const slots = frame.gpuOf.length
  if (frame.idle && current) return repairedStart(frame, current)
  const prices: Prices = { move: lambda / slots, crossing: (lambda * linkWeight) / frame.total }
  const cost = (s: LayerState) => s.peak() / frame.mean + prices.move * s.moves + prices.crossing * s.crossing
  let best: Int32Array | null = null
  let least = Number.POSITIVE_INFINITY
  const keep = (s: LayerState) => {
    const c = cost(s)
    if (c >= least) return
    least = c
    best = s.expertAt.slice()
  }
  for (const start of starts) {
    const state = new LayerState(frame, start)
    settle(state, prices, LIMIT)
    keep(state)
  }
  if (current) {
    const state = new LayerState(frame, repairedStart(frame, current))
    keep(state)
    follow(state)
    keep(state)
    descend(state, 0, LIMIT, prices, () => keep(state))
    state.reset(best!)
    settle(state, prices, LIMIT)
    keep(state)
  }
  return best!
}
