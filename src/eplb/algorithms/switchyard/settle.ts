// Takes back what is not worth its price: experts return to GPUs that had them, replicas leave nodes that hold another, as
// long as (peak / mean + prices) falls. Invariant: that sum falls with every step, so it ends. Not here: lowering the peak.
import type { LayerState, Prices } from './layer-state.js'

/** Changes of the sum below this are rounding. */
const LEAST_GAIN = 1e-9

/** Sweeps over the slots, taking each slot's best change, until a sweep changes nothing or `limit` sweeps are done. */
export function settle(state: LayerState, prices: Prices, limit: number): void {
  for (let sweep = 0; sweep < limit; sweep++) {
    let changed = false
    for (let slot = 0; slot < state.expertAt.length; slot++) if (settleSlot(state, prices, slot)) changed = true
    if (!changed) return
  }
}

function settleSlot(state: LayerState, prices: Prices, slot: number): boolean {
  const { frame, expertAt, piece, load, count } = state
  const { gpuOf, held, weights } = frame
  const mine = expertAt[slot]!
  const foreign = state.isForeign(slot)
  const crowded = prices.crossing > 0 && state.sharesNode(slot)
  if (!foreign && !crowded) return false
  const g = gpuOf[slot]!
  const perMean = 1 / frame.mean
  const peak = state.peak()
  let least = -LEAST_GAIN
  let other = -1
  let expert = -1
  for (let j = 0; j < expertAt.length; j++) {
    const theirs = expertAt[j]!
    const h = gpuOf[j]!
    if (g === h || mine === theirs) continue
    // An exchange brings an expert home, or it saves no move.
    if (!crowded && !held![h * weights.length + mine] && !held![g * weights.length + theirs]) continue
    const price = state.swapPrice(slot, j, prices)
    if (price >= least) continue
    const less = piece[mine]! - piece[theirs]!
    const change = (Math.max(peak, load[g]! - less, load[h]! + less) - peak) * perMean + price
    if (change < least) {
      least = change
      other = j
    }
  }
  if (foreign && count[mine]! > 1) {
    for (let e = 0; e < count.length; e++) {
      if (e === mine || !held![g * weights.length + e]) continue
      const price = state.convertPrice(slot, e, prices)
      if (price >= least) continue
      const change = (Math.max(peak, state.convertedPeak(slot, e)) - peak) * perMean + price
      if (change < least) {
        least = change
        expert = e
      }
    }
  }
  if (expert >= 0) state.convert(slot, expert)
  else if (other >= 0) state.swap(slot, other)
  else return false
  return true
}
