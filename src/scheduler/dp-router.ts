// Routes requests to attention-DP ranks. Counts are kept where requests are handed out, so a burst is spread at once
// instead of landing on the rank whose last report looked best (sources: SGLang data_parallel_controller.py; the fault
// of stale loads: its PR #21699).
import { PrefixMemory } from './prefix-memory.js'

/** `cache_aware`: where most of the prompt is cached already, unless that rank is much busier; else the least tokens. */
export type LoadBalanceMethod = 'auto' | 'round_robin' | 'total_requests' | 'total_tokens' | 'cache_aware'

interface DpLoad {
  requests: number
  /** Prompt tokens of requests that are there; what they draw is added as it comes. */
  tokens: number
  /** (query, key) pairs of the rank's last step: how long its attention takes. Breaks ties. */
  attentionPairs: number
}

/** A rank may have so many requests more than the least busy one and still be chosen for its cache. */
const CACHE_SLACK_REQUESTS = 8
/** Share of the prompt that must be cached for the cache to decide. */
const CACHE_SHARE = 0.5

export class DpRouter {
  readonly #method: LoadBalanceMethod
  readonly #loads: DpLoad[]
  readonly #prefixes: PrefixMemory
  #next = 0

  /** @param pageSize prefixes are remembered in whole pages, as the ranks cache them */
  constructor(method: LoadBalanceMethod, dpRanks: number, pageSize = 16) {
    this.#method = method
    this.#loads = Array.from({ length: dpRanks }, () => ({ requests: 0, tokens: 0, attentionPairs: 0 }))
    this.#prefixes = new PrefixMemory(dpRanks, pageSize)
  }

  /** @param routed the rank the request asks for (routed_dp_rank), which is respected */
  pick(inputIds: ArrayLike<number>, routed: number | undefined): number {
    const rank = routed ?? this.#choose(inputIds)
    const load = this.#loads[rank]!
    load.requests++
    load.tokens += inputIds.length
    if (this.#method === 'cache_aware') this.#prefixes.remember(rank, inputIds)
    return rank
  }

  #choose(inputIds: ArrayLike<number>): number {
    switch (this.#method) {
      case 'auto':
      case 'round_robin': {
        const rank = this.#next
        this.#next = (this.#next + 1) % this.#loads.length
        return rank
      }
      case 'total_requests':
        return this.#least(l => [l.requests, l.attentionPairs])
      case 'total_tokens':
        return this.#least(l => [l.tokens, l.requests, l.attentionPairs])
      case 'cache_aware':
        return this.#cached(inputIds) ?? this.#least(l => [l.tokens, l.requests, l.attentionPairs])
    }
  }

  /** The rank that holds the longest prefix, if it is long enough to matter and the rank not too busy. */
  #cached(inputIds: ArrayLike<number>): number | null {
    const known = this.#prefixes.match(inputIds)
    const best = known.indexOf(Math.max(...known))
    const fewest = Math.min(...this.#loads.map(l => l.requests))
    const worth = known[best]! >= inputIds.length * CACHE_SHARE
    return worth && this.#loads[best]!.requests <= fewest + CACHE_SLACK_REQUESTS ? best : null
  }

  #least(key: (load: DpLoad) => readonly number[]): number {
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
