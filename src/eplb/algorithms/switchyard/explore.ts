// Out of a local optimum: force one change that the descent would not take, descend again, keep the result if the peak fell,
// else go back. The forced changes are tried from the mildest on. Deterministic; work is counted in steps, not in time.
import { descend } from './descend.js'
import type { LayerState } from './layer-state.js'

/** Steps of a descent after a forced change. */
const DEPTH = 24

interface Kick {
  readonly height: number
  readonly slot: number
  readonly other: number
  readonly expert: number
}

/**
 * Lowers the peak of a state in which `descend` has ended, until it is at most `floor` or `budget` steps are spent.
 * Returns the steps spent.
 */
export function explore(state: LayerState, floor: number, budget: number): number {
  let spent = 0
  let best = state.expertAt.slice()
  let bestPeak = state.peak()
  let kicks = kicksOf(state)
  let next = 0
  while (bestPeak > floor && spent < budget && next < kicks.length) {
    const kick = kicks[next++]!
    if (kick.other >= 0) state.swap(kick.slot, kick.other)
    else state.convert(kick.slot, kick.expert)
    spent++
    descend(state, floor, DEPTH, undefined, () => spent++)
    if (state.peak() < bestPeak * (1 - 1e-9)) {
      best = state.expertAt.slice()
      bestPeak = state.peak()
      kicks = kicksOf(state)
      next = 0
    } else state.reset(best)
  }
  return spent
}

/** Changes at the fullest GPU that lift another at least to its height, the mildest first. */
function kicksOf(state: LayerState): Kick[] {
  const { frame, expertAt, piece, load, count } = state
  const { starts, gpuOf } = frame
  const full = state.peakGpu()
  const kicks: Kick[] = []
  for (let i = starts[full]!; i < starts[full + 1]!; i++) {
    const mine = expertAt[i]!
    for (let j = 0; j < expertAt.length; j++) {
      const theirs = expertAt[j]!
      const g = gpuOf[j]!
      if (g === full || mine === theirs) continue
      const less = piece[mine]! - piece[theirs]!
      if (less > 0) kicks.push({ height: load[g]! + less, slot: i, other: j, expert: -1 })
      if (count[theirs]! > 1) kicks.push({ height: state.convertedPeak(j, mine), slot: j, other: -1, expert: mine })
    }
  }
  return kicks.sort((a, b) => a.height - b.height)
}
