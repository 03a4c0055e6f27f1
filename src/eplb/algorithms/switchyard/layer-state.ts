// One layer's plan while it is being improved: which expert is in which live slot, with loads, moves and crossing traffic
// kept up to date. Invariant: every expert keeps at least one slot; every slot is filled. Slots here are those of live
// GPUs only, renumbered. Not here: which change is worth making (descend.ts, settle.ts).

/** What does not change during the search. */
export interface LayerFrame {
  /** [experts] */
  readonly weights: Float64Array
  readonly total: number
  /** Mean load of live GPUs, those without slots included. */
  readonly mean: number
  /** No load at all: the weights are then all 1. */
  readonly idle: boolean
  /** Live GPUs with slots, renumbered 0…gpus - 1. */
  readonly gpus: number
  /** First slot of each GPU, length gpus + 1. */
  readonly starts: Int32Array
  /** [slots] */
  readonly gpuOf: Int32Array
  readonly nodes: number
  /** [gpus] */
  readonly nodeOf: Int32Array
  /** [nodes] share of live GPUs: where tokens come from. */
  readonly nodeShare: Float64Array
  /** [gpus][experts] 1 where the placement in effect has the expert on the GPU; null when moves are free. */
  readonly held: Uint8Array | null
}

/** What a change costs beside the peak, in units of the mean GPU load. */
export interface Prices {
  /** Per expert that a GPU must receive. */
  readonly move: number
  /** Per unit of weight that must cross nodes. */
  readonly crossing: number
}

export const FREE: Prices = { move: 0, crossing: 0 }

export class LayerState {
  readonly frame: LayerFrame
  /** [slots] expert of every slot. */
  readonly expertAt: Int32Array
  /** [experts] replicas. */
  readonly count: Int32Array
  /** [experts] load of one replica. */
  readonly piece: Float64Array
  /** [gpus] */
  readonly load: Float64Array
  /** Slots of every expert. */
  readonly slotsOf: number[][]
  readonly #onGpu: Int32Array
  readonly #onNode: Int32Array
  #moves = 0
  #crossing = 0

  constructor(frame: LayerFrame, expertAt: Int32Array) {
    const experts = frame.weights.length
    this.frame = frame
    this.expertAt = expertAt.slice()
    this.count = new Int32Array(experts)
    this.piece = new Float64Array(experts)
    this.load = new Float64Array(frame.gpus)
    this.slotsOf = Array.from({ length: experts }, () => [])
    this.#onGpu = new Int32Array(frame.gpus * experts)
    this.#onNode = new Int32Array(frame.nodes * experts)
    this.reset(expertAt)
  }

  /** Starts over from another assignment of slots. */
  reset(expertAt: Int32Array): void {
    this.expertAt.set(expertAt)
    this.count.fill(0)
    this.#onGpu.fill(0)
    this.#onNode.fill(0)
    for (const slots of this.slotsOf) slots.length = 0
    this.#moves = 0
    this.#crossing = this.frame.total
    for (let s = 0; s < expertAt.length; s++) {
      const e = expertAt[s]!
      this.count[e]!++
      this.slotsOf[e]!.push(s)
      this.#seat(e, this.frame.gpuOf[s]!, 1)
    }
    for (let e = 0; e < this.count.length; e++) this.piece[e] = this.frame.weights[e]! / this.count[e]!
    this.#sumLoads()
  }

  peakGpu(): number {
    let top = 0
    for (let g = 1; g < this.load.length; g++) if (this.load[g]! > this.load[top]!) top = g
    return top
  }

  peak(): number {
    return this.load[this.peakGpu()]!
  }

  /** Experts that GPUs hold now and did not hold before; 0 when moves are free. */
  get moves(): number {
    return this.#moves
  }

  /** Weight whose tokens must leave their node, for sources spread over live GPUs. */
  get crossing(): number {
    return this.#crossing
  }

  /** Replicas of the expert on the GPU. */
  replicasOn(gpu: number, expert: number): number {
    return this.#onGpu[gpu * this.count.length + expert]!
  }

  /** Whether the expert in the slot is new to its GPU. */
  isForeign(slot: number): boolean {
    const { held, gpuOf, weights } = this.frame
    return held !== null && !held[gpuOf[slot]! * weights.length + this.expertAt[slot]!]
  }

  /** Whether another replica of the slot's expert is in the same node. */
  sharesNode(slot: number): boolean {
    const { nodeOf, gpuOf, weights } = this.frame
    return this.#onNode[nodeOf[gpuOf[slot]!]! * weights.length + this.expertAt[slot]!]! > 1
  }

  /** Price of exchanging the experts of two slots on different GPUs, beside loads. */
  swapPrice(i: number, j: number, prices: Prices): number {
    const a = this.expertAt[i]!
    const b = this.expertAt[j]!
    const g = this.frame.gpuOf[i]!
    const h = this.frame.gpuOf[j]!
    let price = prices.move * (this.#leave(a, g) + this.#enter(b, g) + this.#leave(b, h) + this.#enter(a, h))
    if (prices.crossing > 0 && this.frame.nodeOf[g] !== this.frame.nodeOf[h])
      price +=
        prices.crossing *
        (this.#leaveNode(a, g) + this.#enterNode(b, g) + this.#leaveNode(b, h) + this.#enterNode(a, h))
    return price
  }

  /** Price of giving a slot to another expert, beside loads. */
  convertPrice(slot: number, expert: number, prices: Prices): number {
    const g = this.frame.gpuOf[slot]!
    const old = this.expertAt[slot]!
    let price = prices.move * (this.#leave(old, g) + this.#enter(expert, g))
    if (prices.crossing > 0) price += prices.crossing * (this.#leaveNode(old, g) + this.#enterNode(expert, g))
    return price
  }

  /**
   * Greatest load among GPUs whose load changes if the slot goes to `expert`; its present expert has another replica. May
   * stop at the first load of at least `limit` and return that.
   */
  convertedPeak(slot: number, expert: number, limit = Number.POSITIVE_INFINITY): number {
    const { gpuOf, weights } = this.frame
    const experts = weights.length
    const old = this.expertAt[slot]!
    const rise = weights[old]! / (this.count[old]! - 1) - this.piece[old]!
    const share = weights[expert]! / (this.count[expert]! + 1)
    const fall = share - this.piece[expert]!
    const at = gpuOf[slot]!
    const onGpu = this.#onGpu
    let peak =
      this.load[at]! +
      share -
      this.piece[old]! +
      rise * (onGpu[at * experts + old]! - 1) +
      fall * onGpu[at * experts + expert]!
    for (const s of this.slotsOf[old]!) {
      if (peak >= limit) return peak
      const g = gpuOf[s]!
      if (g === at) continue
      peak = Math.max(peak, this.load[g]! + rise * onGpu[g * experts + old]! + fall * onGpu[g * experts + expert]!)
    }
    for (const s of this.slotsOf[expert]!) {
      if (peak >= limit) return peak
      const g = gpuOf[s]!
      if (g === at) continue
      peak = Math.max(peak, this.load[g]! + rise * onGpu[g * experts + old]! + fall * onGpu[g * experts + expert]!)
    }
    return peak
  }

  swap(i: number, j: number): void {
    const a = this.expertAt[i]!
    const b = this.expertAt[j]!
    this.#put(i, a, b)
    this.#put(j, b, a)
    this.#sumLoads()
  }

  convert(slot: number, expert: number): void {
    const old = this.expertAt[slot]!
    this.#put(slot, old, expert)
    this.count[old]!--
    this.count[expert]!++
    this.piece[old] = this.frame.weights[old]! / this.count[old]!
    this.piece[expert] = this.frame.weights[expert]! / this.count[expert]!
    this.#sumLoads()
  }

  #put(slot: number, old: number, expert: number): void {
    const g = this.frame.gpuOf[slot]!
    const list = this.slotsOf[old]!
    list.splice(list.indexOf(slot), 1)
    this.slotsOf[expert]!.push(slot)
    this.expertAt[slot] = expert
    this.#seat(old, g, -1)
    this.#seat(expert, g, 1)
  }

  #seat(expert: number, gpu: number, by: 1 | -1): void {
    const { weights, nodeOf, nodeShare, held } = this.frame
    const experts = weights.length
    const node = nodeOf[gpu]!
    const onGpu = this.#onGpu[gpu * experts + expert]! + by
    const onNode = this.#onNode[node * experts + expert]! + by
    this.#onGpu[gpu * experts + expert] = onGpu
    this.#onNode[node * experts + expert] = onNode
    // The count is 0 on one side of the change exactly when it arrives at 1 from below or at 0 from above.
    const edge = by === 1 ? 1 : 0
    if (held && onGpu === edge && !held[gpu * experts + expert]) this.#moves += by
    if (onNode === edge) this.#crossing -= by * weights[expert]! * nodeShare[node]!
  }

  /** Summed afresh in slot order after every change: no drift, and equal plans have equal loads. */
  #sumLoads(): void {
    const { gpuOf } = this.frame
    this.load.fill(0)
    for (let s = 0; s < this.expertAt.length; s++) this.load[gpuOf[s]!]! += this.piece[this.expertAt[s]!]!
  }

  #leave(expert: number, gpu: number): number {
    const { held, weights } = this.frame
    const at = gpu * weights.length + expert
    return held && !held[at] && this.#onGpu[at] === 1 ? -1 : 0
  }

  #enter(expert: number, gpu: number): number {
    const { held, weights } = this.frame
    const at = gpu * weights.length + expert
    return held && !held[at] && this.#onGpu[at] === 0 ? 1 : 0
  }

  #leaveNode(expert: number, gpu: number): number {
    const { weights, nodeOf, nodeShare } = this.frame
    const node = nodeOf[gpu]!
    return this.#onNode[node * weights.length + expert] === 1 ? weights[expert]! * nodeShare[node]! : 0
  }

  #enterNode(expert: number, gpu: number): number {
    const { weights, nodeOf, nodeShare } = this.frame
    const node = nodeOf[gpu]!
    return this.#onNode[node * weights.length + expert] === 0 ? -weights[expert]! * nodeShare[node]! : 0
  }
}
