// The two greedy steps that the public algorithms share: give extra slots to the heaviest experts, and pack weighted items
// into bins of equal capacity. Numbers are those of the PyTorch code: float32 weights, float64 sums of a bin, stable sorts,
// lowest index on ties; any deviation changes maps. Rules: deepseek-ai/EPLB eplb.py.

/** Indices of `values` by value descending, equal values in index order. */
export function descending(values: Float32Array): Int32Array {
  const order = new Int32Array(values.length)
  for (let i = 0; i < order.length; i++) order[i] = i
  return order.sort((a, b) => values[b]! - values[a]!)
}

export interface Packing {
  /** Bin of every item. */
  readonly pack: Int32Array
  /** Place of every item in its bin, in order of arrival. */
  readonly rank: Int32Array
}

/**
 * Packs n items into `packs` bins of n / packs items: heaviest first, each into the lightest bin with room (lowest bin on
 * ties). Bins of one item are the identity, whatever the weights.
 */
export function balancedPacking(weights: Float32Array, packs: number): Packing {
  const n = weights.length
  const capacity = n / packs
  const pack = new Int32Array(n)
  const rank = new Int32Array(n)
  if (capacity === 1) {
    for (let i = 0; i < n; i++) pack[i] = i
    return { pack, rank }
  }
  const load = new Float64Array(packs)
  const items = new Int32Array(packs)
  for (const item of descending(weights)) {
    let best = -1
    for (let p = 0; p < packs; p++) if (items[p]! < capacity && (best < 0 || load[p]! < load[best]!)) best = p
    pack[item] = best
    rank[item] = items[best]!++
    load[best]! += weights[item]!
  }
  return { pack, rank }
}

export interface Replication {
  /** [slots] expert of every slot: the experts in order, then the extra ones as they were given. */
  readonly expert: Int32Array
  /** [slots] replica rank of every slot. */
  readonly rank: Int32Array
  /** [experts] */
  readonly count: Int32Array
}

/** Gives each slot beyond one per expert to the expert with the greatest weight / count (float32, first on ties). */
export function replicate(weights: Float32Array, slots: number): Replication {
  const n = weights.length
  const expert = new Int32Array(slots)
  const rank = new Int32Array(slots)
  const count = new Int32Array(n).fill(1)
  const share = weights.slice()
  for (let e = 0; e < n; e++) expert[e] = e
  for (let slot = n; slot < slots; slot++) {
    let top = 0
    for (let e = 1; e < n; e++) if (share[e]! > share[top]!) top = e
    expert[slot] = top
    rank[slot] = count[top]!++
    share[top] = weights[top]! / count[top]!
  }
  return { expert, rank, count }
}
