// Local search that lowers the peak: the fullest GPU exchanges a replica with another GPU, or a slot goes from an expert
// that has several to one that burdens the fullest GPU. Every step lowers the fullest GPU and lifts none to its height, so
// the sorted loads fall lexicographically and the search ends. Deterministic: first best in slot order.
import { FREE, type LayerState, type Prices } from './layer-state.js'

/** Steps smaller than this share of the peak are not worth taking. */
const LEAST_GAIN = 1e-9

interface Step {
  readonly slot: number
  /** Slot to exchange with, or -1. */
  readonly other: number
  /** Expert to give the slot to, or -1. */
  readonly expert: number
}

/**
 * Lowers the peak step by step until it is at most `floor`, no step lowers it, or `limit` steps are done. A step is the
 * one with the least (greatest load it touches) / mean + price. `onStep` sees the state after every step.
 */
export function descend(
  state: LayerState,
  floor: number,
  limit: number,
  prices: Prices = FREE,
  onStep?: () => void,
): void {
  for (let i = 0; i < limit && state.peak() > floor; i++) {
    const step = bestStep(state, prices)
    if (!step) return
    if (step.other >= 0) state.swap(step.slot, step.other)
    else state.convert(step.slot, step.expert)
    onStep?.()
  }
}

function bestStep(state: LayerState, prices: Prices): Step | null {
  const { frame, expertAt, piece, load, count } = state
  const { starts, gpuOf, weights } = frame
  const full = state.peakGpu()
  const peak = load[full]!
  const below = peak * (1 - LEAST_GAIN)
  const perMean = 1 / frame.mean
  const priced = prices.move > 0 || prices.crossing > 0
  let best: Step | null = null
  let bestScore = Number.POSITIVE_INFINITY
  const slots = expertAt.length
  for (let i = starts[full]!; i < starts[full + 1]!; i++) {
    const mine = piece[expertAt[i]!]!
    for (let j = 0; j < slots; j++) {
      const less = mine - piece[expertAt[j]!]!
      if (less <= 0) continue
      const g = gpuOf[j]!
      if (g === full) continue
      const height = Math.max(peak - less, load[g]! + less)
      if (height >= below) continue
      let score = height * perMean
      // No exchange saves more than two moves and the crossing of both experts.
      if (score - 2 * prices.move - prices.crossing * (weights[expertAt[i]!]! + weights[expertAt[j]!]!) >= bestScore)
        continue
      if (priced) score += state.swapPrice(i, j, prices)
      if (score < bestScore) {
        bestScore = score
        best = { slot: i, other: j, expert: -1 }
      }
    }
  }
  // The load of one GPU often shows that a step is no better than the best so far: look at the others only when it is not.
  const consider = (slot: number, expert: number, atLeast: number) => {
    const price = priced ? state.convertPrice(slot, expert, prices) : 0
    const limit = Math.min(below, (bestScore - price) / perMean)
    if (atLeast >= limit) return
    const height = state.convertedPeak(slot, expert, limit)
    if (height >= limit) return
    const score = height * perMean + price
    if (score < bestScore) {
      bestScore = score
      best = { slot, other: -1, expert }
    }
  }
  const share = (e: number) => weights[e]! / (count[e]! + 1)
  // Slots of other GPUs go to an expert of the fullest.
  const burdens = [...new Set(expertAt.subarray(starts[full], starts[full + 1]))].map(expert => ({
    expert,
    left: peak - (piece[expert]! - share(expert)) * state.replicasOn(full, expert),
  }))
  for (let s = 0; s < slots; s++) {
    const mine = expertAt[s]!
    if (count[mine]! < 2) continue
    const without = load[gpuOf[s]!]! - piece[mine]!
    if (gpuOf[s] === full) {
      for (let e = 0; e < count.length; e++) {
        if (share(e) >= piece[mine]! || e === mine) continue
        consider(s, e, state.replicasOn(full, e) > 0 ? 0 : without + share(e))
      }
      continue
    }
    for (const { expert, left } of burdens) {
      if (expert === mine) continue
      const here = state.replicasOn(gpuOf[s]!, expert) > 0 ? 0 : without + share(expert)
      consider(s, expert, Math.max(left, here))
    }
  }
  return best
}
