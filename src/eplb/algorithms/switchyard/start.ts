// Where the search begins when no other plan fits: a greedy plan for any slots, and a repair of the placement in effect when
// GPUs have died. Invariant: every expert has a slot, every slot an expert. Not here: the search.
import type { LayerFrame } from './layer-state.js'

/**
 * Extra slots to the heaviest piece one by one (float64), then pieces by weight, each to the GPU with room that would be
 * lowest, one without the expert before one that has it.
 */
export function greedyStart(frame: LayerFrame): Int32Array {
  const { weights, gpus, starts } = frame
  const slots = starts[gpus]!
  const count = new Int32Array(weights.length).fill(1)
  for (let extra = slots - weights.length; extra > 0; extra--) count[heaviest(weights, count)]!++
  const order = Array.from(weights.keys()).sort((a, b) => weights[b]! / count[b]! - weights[a]! / count[a]! || a - b)
  const expertAt = new Int32Array(slots)
  const load = new Float64Array(gpus)
  const next = starts.slice(0, gpus)
  for (const e of order) {
    const has = new Uint8Array(gpus)
    for (let r = 0; r < count[e]!; r++) {
      let best = -1
      for (let g = 0; g < gpus; g++) {
        if (next[g]! >= starts[g + 1]!) continue
        if (best < 0 || has[g]! < has[best]! || (has[g] === has[best] && load[g]! < load[best]!)) best = g
      }
      has[best] = 1
      load[best]! += weights[e]! / count[e]!
      expertAt[next[best]!++] = e
    }
  }
  return expertAt
}

/** Expert with the greatest weight / count, first on ties. */
function heaviest(weights: Float64Array, count: Int32Array): number {
  let top = 0
  for (let e = 1; e < weights.length; e++) if (weights[e]! * count[top]! > weights[top]! * count[e]!) top = e
  return top
}

/**
 * The experts now in the live slots (-1 = nothing useful there) made whole: empty slots go to experts that have none, then
 * to the heaviest; experts that still have none take a slot from the expert whose pieces stay lightest.
 */
export function repairedStart(frame: LayerFrame, current: Int32Array): Int32Array {
  const { weights } = frame
  const expertAt = current.slice()
  const count = new Int32Array(weights.length)
  for (const e of expertAt) if (e >= 0) count[e]!++
  const missing = Array.from(weights.keys())
    .filter(e => count[e] === 0)
    .sort((a, b) => weights[b]! - weights[a]! || a - b)
  for (let s = 0; s < expertAt.length && missing.length > 0; s++)
    if (expertAt[s]! < 0) expertAt[s] = take(missing.shift()!, count)
  for (const e of missing) {
    let best = -1
    let least = Number.POSITIVE_INFINITY
    for (let s = 0; s < expertAt.length; s++) {
      const f = expertAt[s]!
      if (count[f]! < 2) continue
      const piece = weights[f]! / (count[f]! - 1)
      if (piece < least) {
        least = piece
        best = s
      }
    }
    count[expertAt[best]!]!--
    expertAt[best] = take(e, count)
  }
  for (let s = 0; s < expertAt.length; s++) if (expertAt[s]! < 0) expertAt[s] = take(heaviest(weights, count), count)
  return expertAt
}

function take(expert: number, count: Int32Array): number {
  count[expert]!++
  return expert
}
