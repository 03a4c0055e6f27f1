// Who holds which KV page: a request's prefix lies in the prefix tree, page after page, and its last, partly filled page
// is its own. All pages of a request come and go through here.
import type { PagePool, PrefixTree } from '../kvcache/index.js'
import type { RequestState } from './request-state.js'

export class KvLedger {
  readonly pool: PagePool
  readonly tree: PrefixTree
  /** Without the prefix cache pages are private and free as soon as their request ends. */
  readonly #caching: boolean

  constructor(pool: PagePool, tree: PrefixTree, caching: boolean) {
    this.pool = pool
    this.tree = tree
    this.#caching = caching
  }

  /** Pages that can be had: free ones and those that only the cache holds. */
  get availablePages(): number {
    return this.pool.freePages + this.tree.evictablePages
  }

  /** Tokens whose pages running requests hold (whole pages). */
  get usedTokens(): number {
    return (this.pool.pages - this.availablePages) * this.pool.pageSize
  }

  /**
   * Gives a request that has nothing computed yet the longest cached prefix of its tokens. At least one token stays to be
   * computed, since its logits are wanted.
   */
  adoptPrefix(state: RequestState): void {
    if (!this.#caching || state.request.wantLogits || state.computed > 0) return
    const path = this.tree.match(state.tokens, state.length - 1)
    if (path.length === 0) return
    this.tree.lock(path)
    state.path.push(...path)
    for (const node of path) state.pages.push(node.page)
    state.computed = path.length * this.pool.pageSize
    state.cached = Math.max(state.cached, Math.min(state.computed, state.promptLength))
  }

  /** Pages for tokens [0, upTo). @returns how many tokens of them are covered: fewer when pages have run out */
  cover(state: RequestState, upTo: number): number {
    const { pageSize } = this.pool
    while (state.pages.length * pageSize < upTo) {
      let page = this.pool.take()
      if (page === undefined && this.tree.evict(1) > 0) page = this.pool.take()
      if (page === undefined) break
      state.pages.push(page)
    }
    return Math.min(upTo, state.pages.length * pageSize)
  }

  /** Computed pages that are full join the tree, where others can find them. */
  share(state: RequestState): void {
    if (!this.#caching) return
    const full = Math.floor(state.computed / this.pool.pageSize)
    while (state.path.length < full) {
      const index = state.path.length
      const node = this.tree.extend(state.path, state.tokens, state.pages[index]!)
      state.path.push(node)
      state.pages[index] = node.page
    }
  }

  /** Lets go of everything a request holds; what is in the tree can be found again until it is evicted. */
  release(state: RequestState): void {
    for (let i = state.path.length; i < state.pages.length; i++) this.pool.release(state.pages[i]!)
    this.tree.unlock(state.path)
    state.path.length = 0
    state.pages.length = 0
  }
}
