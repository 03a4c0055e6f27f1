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
  const perMean = frame.gpus / frame.total
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
      const score = height * perMean + (priced ? state.swapPrice(i, j, prices) : 0)
      if (score < bestScore) {
        bestScore = score
        best = { slot: i, other: j, expert: -1 }
      }
    }
  }
  const consider = (slot: number, expert: number) => {
    if (expertAt[slot] === expert) return
    const price = priced ? state.convertPrice(slot, expert, prices) : 0
    // The GPU of the slot alone often shows that the step is no better: look at the other GPUs only when it is not.
    const here = load[gpuOf[slot]!]! - piece[expertAt[slot]!]! + weights[expert]! / (count[expert]! + 1)
    const atMost = Math.min(below, (bestScore - price) / perMean)
    if (gpuOf[slot] !== full && here >= atMost) return
    const height = state.convertedPeak(slot, expert)
    if (height >= below) return
    const score = height * perMean + price
    if (score < bestScore) {
      bestScore = score
      best = { slot, other: -1, expert }
    }
  }
  for (let s = 0; s < slots; s++) {
    const mine = expertAt[s]!
    if (count[mine]! < 2) continue
    if (gpuOf[s] !== full) {
      for (let i = starts[full]!; i < starts[full + 1]!; i++) consider(s, expertAt[i]!)
      continue
    }
    for (let e = 0; e < count.length; e++) if (weights[e]! / (count[e]! + 1) < piece[mine]!) consider(s, e)
  }
  return best
}
