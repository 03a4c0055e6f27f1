// Before few-move changes: replicas go to where the load has gone. A plan serves load that comes after it, and a peak that is
// low only because a hot expert without replicas sits among cold ones does not last. With some slack, so that noise moves
// nothing. Measured on drifting loads: a better balance in the next window for about the same number of moves.
import type { LayerState } from './layer-state.js'

/** A replica changes hands when the largest piece exceeds what the donor's pieces would become by this factor. */
const SLACK = 1.3

/** Gives slots of the expert that can best spare one to the expert with the largest piece, while that differs by SLACK. */
export function follow(state: LayerState): void {
  const { weights } = state.frame
  const { count, piece } = state
  // Every conversion but those of idle experts' replicas narrows the spread; the slots bound it in any case.
  for (let n = 0; n < state.expertAt.length; n++) {
    let hot = 0
    for (let e = 1; e < weights.length; e++) if (piece[e]! > piece[hot]!) hot = e
    let donor = -1
    let least = piece[hot]! / SLACK
    for (let e = 0; e < weights.length; e++) {
      if (count[e]! < 2 || e === hot) continue
      const left = weights[e]! / (count[e]! - 1)
      if (left >= least) continue
      least = left
      donor = e
    }
    if (donor < 0) return
    let slot = -1
    let lowest = Number.POSITIVE_INFINITY
    for (const s of state.slotsOf[donor]!) {
      const height = state.convertedPeak(s, hot)
      if (height >= lowest) continue
      lowest = height
      slot = s
    }
    state.convert(slot, hot)
  }
}
