// Takes back what is not worth its price: experts return to GPUs that had them, replicas leave nodes that hold another, as
// long as (peak / mean + prices) falls. Invariant: that sum falls with every step, so it ends. Not here: lowering the peak.
import type { LayerState, Prices } from './layer-state.js'

/** Changes of the sum below this are rounding. */
const LEAST_GAIN = 1e-9

export function settle(state: LayerState, prices: Prices, limit: number): void {
  for (let i = 0; i < limit; i++) if (!settleOnce(state, prices)) return
}

function settleOnce(state: LayerState, prices: Prices): boolean {
  const { frame, expertAt, piece, load, count } = state
  const { gpuOf } = frame
  const perMean = frame.gpus / frame.total
  const peak = state.peak()
  let best = { change: -LEAST_GAIN, slot: -1, other: -1, expert: -1 }
  for (let i = 0; i < expertAt.length; i++) {
    const mine = expertAt[i]!
    const foreign = state.isForeign(i)
    if (!foreign && !(prices.crossing > 0 && state.sharesNode(i))) continue
    for (let j = 0; j < expertAt.length; j++) {
      if (gpuOf[i] === gpuOf[j] || mine === expertAt[j]) continue
      const price = state.swapPrice(i, j, prices)
      if (price >= best.change) continue
      const less = piece[mine]! - piece[expertAt[j]!]!
      const height = Math.max(peak, load[gpuOf[i]!]! - less, load[gpuOf[j]!]! + less)
      const change = (height - peak) * perMean + price
      if (change < best.change) best = { change, slot: i, other: j, expert: -1 }
    }
    if (!foreign || count[mine]! < 2) continue
    for (let e = 0; e < count.length; e++) {
      if (e === mine) continue
      const price = state.convertPrice(i, e, prices)
      if (price >= best.change) continue
      const change = (Math.max(peak, state.convertedPeak(i, e)) - peak) * perMean + price
      if (change < best.change) best = { change, slot: i, other: -1, expert: e }
    }
  }
  if (best.slot < 0) return false
  if (best.other >= 0) state.swap(best.slot, best.other)
  else state.convert(best.slot, best.expert)
  return true
}
