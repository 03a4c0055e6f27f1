// Who gets the extra slots in the vec variants: the expert whose further replica lowers the sum over steps of the per-step
// largest piece the most. Float32 throughout, as the PyTorch code. Each step keeps a short list of its largest scores, so that
// a step is scanned again only when the list has run short. Not here: where slots go (deepseek-vec.ts).

const f32 = Math.fround
const TIE_STEP = f32(1e-4)
/** Largest scores remembered per step. */
const LIST = 8

export interface ChunkSlots {
  /** Index in the layer of every slot's expert. */
  readonly expert: Int32Array
  readonly rank: Int32Array
  /** [experts of the chunk] */
  readonly count: Int32Array
}

/** Shares out the chunk's slots among experts first … first + n - 1 of `loads` [steps][logical]. */
export function chunkSlots(
  loads: Float32Array,
  steps: number,
  logical: number,
  first: number,
  n: number,
  slots: number,
): ChunkSlots {
  const expert = new Int32Array(slots)
  const rank = new Int32Array(slots)
  const count = new Int32Array(n).fill(1)
  for (let i = 0; i < n; i++) expert[i] = first + i
  const peaks = new StepPeaks(loads, steps, logical, first, n)
  for (let slot = n; slot < slots; slot++) {
    const winner = cheapest(peaks, loads, logical, first, count)
    expert[slot] = first + winner
    rank[slot] = count[winner]!++
    for (let s = 0; s < steps; s++) peaks.lower(s, winner, count[winner]!)
  }
  return { expert, rank, count }
}

/** score[s][i] = (load + index·1e-4) / count, and the largest of every step in order: by score, first index on ties. */
class StepPeaks {
  readonly steps: number
  readonly experts: number
  readonly score: Float32Array
  /** [steps][LIST] experts with the largest scores, of which the first `listed[s]` are known. */
  readonly largest: Int32Array
  readonly #listed: Int32Array
  /** The addend makes scores differ, so that a maximum is one expert. */
  readonly #base: Float32Array

  constructor(loads: Float32Array, steps: number, logical: number, first: number, n: number) {
    this.steps = steps
    this.experts = n
    this.#base = new Float32Array(steps * n)
    for (let s = 0; s < steps; s++)
      for (let i = 0; i < n; i++)
        this.#base[s * n + i] = f32(loads[s * logical + first + i]! + f32((first + i) * TIE_STEP))
    this.score = this.#base.slice()
    this.largest = new Int32Array(steps * LIST)
    this.#listed = new Int32Array(steps)
    for (let s = 0; s < steps; s++) this.#scan(s)
  }

  top(s: number): number {
    return this.largest[s * LIST]!
  }

  /** Score of the runner-up; -Infinity when there is none. */
  second(s: number): number {
    return this.experts > 1 ? this.score[s * this.experts + this.largest[s * LIST + 1]!]! : Number.NEGATIVE_INFINITY
  }

  /** One replica more for an expert: its score falls, all others stay. */
  lower(s: number, expert: number, count: number): void {
    const { score, largest, experts } = this
    score[s * experts + expert] = this.#base[s * experts + expert]! / count
    const from = s * LIST
    let listed = this.#listed[s]!
    let at = 0
    while (at < listed && largest[from + at] !== expert) at++
    if (at === listed) return
    const value = score[s * experts + expert]!
    for (; at + 1 < listed; at++) {
      const next = largest[from + at + 1]!
      const theirs = score[s * experts + next]!
      if (theirs < value || (theirs === value && next > expert)) break
      largest[from + at] = next
    }
    largest[from + at] = expert
    // At the end of the list an expert outside it may be larger by now.
    if (at + 1 === listed && listed < experts) this.#listed[s] = --listed
    if (listed < Math.min(2, experts)) this.#scan(s)
  }

  #scan(s: number): void {
    const { score, largest, experts } = this
    const from = s * LIST
    let listed = 0
    for (let i = 0; i < experts; i++) {
      const value = score[s * experts + i]!
      if (listed === LIST && value <= score[s * experts + largest[from + LIST - 1]!]!) continue
      let at = listed < LIST ? listed++ : LIST - 1
      for (; at > 0 && score[s * experts + largest[from + at - 1]!]! < value; at--)
        largest[from + at] = largest[from + at - 1]!
      largest[from + at] = i
    }
    this.#listed[s] = listed
  }
}

/** Relative rounding of one float32 addition, with a little to spare. */
const ROUNDING = 1.01 * 2 ** -24

/**
 * The first expert for which the sum over steps of the peaks is least if it alone had one replica more, with every sum added
 * step by step in float32. What an expert saves is first added in float64, for all experts in one pass; only experts that
 * float32 rounding could still put first are summed step by step.
 */
function cheapest(peaks: StepPeaks, loads: Float32Array, logical: number, first: number, count: Int32Array): number {
  const { steps, experts, score } = peaks
  const peak = new Float32Array(steps)
  /** A step's peak if its top expert had one replica more. */
  const lowered = new Float32Array(steps)
  /** Sum of the peaks before each step, added in order as float32. */
  const before = new Float32Array(steps + 1)
  const firstTop = new Int32Array(experts).fill(-1)
  const saving = new Float64Array(experts)
  let total = 0
  for (let s = 0; s < steps; s++) {
    const top = peaks.top(s)
    peak[s] = score[s * experts + top]!
    lowered[s] = Math.max(peaks.second(s), f32(loads[s * logical + first + top]! / (count[top]! + 1)))
    before[s + 1] = before[s]! + peak[s]!
    total += peak[s]!
    saving[top]! += peak[s]! - lowered[s]!
    if (firstTop[top]! < 0) firstTop[top] = s
  }
  let most = 0
  for (let i = 0; i < experts; i++) most = Math.max(most, saving[i]!)
  // A float32 sum of n terms is off by at most n roundings of the whole, and so is the one it is compared with.
  const enough = most - 2 * steps * ROUNDING * total
  let winner = 0
  let least = Number.POSITIVE_INFINITY
  for (let i = 0; i < experts; i++) {
    if (saving[i]! < enough) continue
    // Experts that are no step's maximum all have this sum.
    let sum = before[steps]!
    if (firstTop[i]! >= 0) {
      sum = before[firstTop[i]!]!
      for (let s = firstTop[i]!; s < steps; s++) sum = f32(sum + (peaks.top(s) === i ? lowered[s]! : peak[s]!))
    }
    if (sum < least) {
      least = sum
      winner = i
    }
  }
  return winner
}
