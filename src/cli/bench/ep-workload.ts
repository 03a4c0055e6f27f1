// The workload of `bench ep`: who sends which tokens where, drawn from a seed before anything runs, and the bytes that follow
// from it. Pure data and arithmetic.
import { CounterRandom, STREAM } from '../../runtime/random.js'

export interface EpShape {
  readonly ranks: number
  /** Tokens of each rank. */
  readonly tokens: number
  readonly hidden: number
  readonly experts: number
  readonly topK: number
  /** Exponent s: expert number e is drawn with weight 1 / (e + 1)^s, experts in a random order. 0 = even. */
  readonly skew: number
  readonly seed: number
}

export interface EpRoutes {
  /** [ranks] of i32 [tokens, topK]. */
  readonly ids: readonly Int32Array[]
  /** Rows that each rank receives. */
  readonly received: readonly number[]
  /** Rows of all ranks, and those whose source is another rank. */
  readonly rows: number
  readonly crossing: number
}

/** Experts of each rank: as even as they divide. */
export const expertsOfMember = (experts: number, ranks: number): number[] =>
  Array.from({ length: ranks }, (_, r) => Math.floor((experts * (r + 1)) / ranks) - Math.floor((experts * r) / ranks))

export function drawRoutes(shape: EpShape): EpRoutes {
  const { ranks, tokens, experts, topK, skew, seed } = shape
  const random = new CounterRandom(seed, STREAM.benchmark)
  const order = Array.from({ length: experts }, (_, e) => e)
  for (let i = experts - 1; i > 0; i--) {
    const j = random.below(i + 1)
    ;[order[i], order[j]] = [order[j]!, order[i]!]
  }
  const shares = order.map(place => (place + 1) ** -skew)
  const owner = expertsOfMember(experts, ranks).flatMap((n, r) => Array<number>(n).fill(r))
  const received = Array<number>(ranks).fill(0)
  let crossing = 0
  const ids = Array.from({ length: ranks }, (_, source) => {
    const chosen = new Int32Array(tokens * topK)
    for (let t = 0; t < tokens; t++) {
      // The topK largest of share^(1/u) noise: draws without replacement in proportion to the shares.
      const keys = shares.map((share, e): [number, number] => [Math.log(random.unit() + 2 ** -33) / share, e])
      keys.sort((a, b) => b[0] - a[0])
      const seen = new Set<number>()
      for (let k = 0; k < topK; k++) {
        const e = keys[k]![1]
        chosen[t * topK + k] = e
        seen.add(owner[e]!)
      }
      for (const r of seen) {
        received[r] = received[r]! + 1
        if (r !== source) crossing++
      }
    }
    return chosen
  })
  return { ids, received, rows: received.reduce((a, b) => a + b, 0), crossing }
}
