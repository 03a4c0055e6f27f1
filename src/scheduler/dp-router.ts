// Routes requests to attention-DP ranks. Counts are kept where requests are handed out, so a burst is spread at once
// instead of landing on the rank whose last report looked best (sources: SGLang data_parallel_controller.py; the fault
// of stale loads: its PR #21699).

export type LoadBalanceMethod = 'auto' | 'round_robin' | 'total_requests' | 'total_tokens'

interface DpLoad {
  requests: number
  /** Prompt tokens of requests that are there; what they draw is added as it comes. */
  tokens: number
  /** (query, key) pairs of the rank's last step: how long its attention takes. Breaks ties. */
  attentionPairs: number
}

export class DpRouter {
  readonly #method: LoadBalanceMethod
  readonly #loads: DpLoad[]
  #next = 0

  constructor(method: LoadBalanceMethod, dpRanks: number) {
    this.#method = method
    this.#loads = Array.from({ length: dpRanks }, () => ({ requests: 0, tokens: 0, attentionPairs: 0 }))
  }

  /** @param routed the rank the request asks for (routed_dp_rank), which is respected */
  pick(tokens: number, routed: number | undefined): number {
    const rank = routed ?? this.#choose()
    const load = this.#loads[rank]!
    load.requests++
    load.tokens += tokens
    return rank
  }

  #choose(): number {
    if (this.#method === 'auto' || this.#method === 'round_robin') {
      const rank = this.#next
      this.#next = (this.#next + 1) % this.#loads.length
      return rank
    }
    const key = (l: DpLoad): readonly number[] =>
      this.#method === 'total_requests' ? [l.requests, l.attentionPairs] : [l.tokens, l.requests, l.attentionPairs]
    let best = 0
    for (let rank = 1; rank < this.#loads.length; rank++) {
      if (isLess(key(this.#loads[rank]!), key(this.#loads[best]!))) best = rank
    }
    return best
  }

  drew(rank: number, tokens: number): void {
    this.#loads[rank]!.tokens += tokens
  }

  /** @param tokens all tokens that were counted for the request: its prompt and what it drew */
  finished(rank: number, tokens: number): void {
    const load = this.#loads[rank]!
    load.requests--
    load.tokens -= tokens
  }

  reported(rank: number, attentionPairs: number): void {
    this.#loads[rank]!.attentionPairs = attentionPairs
  }
}

function isLess(a: readonly number[], b: readonly number[]): boolean {
  const i = a.findIndex((value, k) => value !== b[k])
  return i >= 0 && a[i]! < b[i]!
}
