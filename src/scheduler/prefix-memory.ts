// What the router believes each DP rank has cached: hashes of the page-wise prefixes of prompts it was sent, the oldest
// forgotten first. A belief only: a wrong one costs time, never a result.

const PAGES_REMEMBERED = 1 << 16

export class PrefixMemory {
  /** By rank: prefix hash → nothing; a Map keeps insertion order, which is the order of last use. */
  readonly #known: Map<number, true>[]
  readonly #pageSize: number

  constructor(dpRanks: number, pageSize: number) {
    this.#known = Array.from({ length: dpRanks }, () => new Map<number, true>())
    this.#pageSize = pageSize
  }

  /** Tokens of the prompt's longest remembered prefix, by rank. */
  match(tokens: ArrayLike<number>): number[] {
    const found = this.#known.map(() => 0)
    let live = this.#known.map((_, rank) => rank)
    for (const { hash, end } of this.#pages(tokens)) {
      live = live.filter(rank => this.#known[rank]!.has(hash))
      if (live.length === 0) break
      for (const rank of live) found[rank] = end
    }
    return found
  }

  remember(rank: number, tokens: ArrayLike<number>): void {
    const known = this.#known[rank]!
    for (const { hash } of this.#pages(tokens)) {
      known.delete(hash)
      known.set(hash, true)
    }
    for (const oldest of known.keys()) {
      if (known.size <= PAGES_REMEMBERED) break
      known.delete(oldest)
    }
  }

  /** Hash of each prefix of whole pages, two 26-bit FNV-like halves in one exact number. */
  *#pages(tokens: ArrayLike<number>): Generator<{ hash: number; end: number }> {
    let low = 0x811c9dc5
    let high = 0x9e3779b9
    for (let end = this.#pageSize; end <= tokens.length; end += this.#pageSize) {
      for (let i = end - this.#pageSize; i < end; i++) {
        low = Math.imul(low ^ tokens[i]!, 0x01000193)
        high = Math.imul(high ^ (tokens[i]! + 0x7f4a7c15), 0x85ebca6b)
      }
      yield { hash: (low >>> 6) * 67108864 + (high >>> 6), end }
    }
  }
}
