// The prefix cache: a tree whose nodes are whole pages of tokens with their KV page. A request locks the nodes of its own
// prefix; nodes nobody locks stay until their page is needed, least recently used first, leaves before their parents.
// A page's KV depends on its tokens and all before it only, so requests with equal prefixes read the same pages.
import { Unreachable } from '../config/errors.js'
import type { PagePool } from './page-pool.js'

export interface PrefixNode {
  readonly parent: PrefixNode | null
  readonly key: string
  readonly page: number
  readonly children: Map<string, PrefixNode>
  /** Requests that use this node or one below it. */
  locks: number
  /** When it was last locked or unlocked, in ticks of the tree. */
  lastUse: number
}

export class PrefixTree {
  readonly #pool: PagePool
  readonly #root: PrefixNode
  #unlocked = 0
  #tick = 0
  /** Candidates for eviction, oldest first; entries whose node has been used since are stale and skipped. */
  readonly #candidates: { node: PrefixNode; use: number }[] = []
  #nextCandidate = 0

  constructor(pool: PagePool) {
    this.#pool = pool
    this.#root = { parent: null, key: '', page: -1, children: new Map(), locks: 1, lastUse: 0 }
  }

  /** Pages that can be had back by evicting. */
  get evictablePages(): number {
    return this.#unlocked
  }

  /** The cached pages of the longest known prefix of tokens [0, limit), not locked. */
  match(tokens: Int32Array, limit: number): PrefixNode[] {
    const path: PrefixNode[] = []
    let node = this.#root
    for (let from = 0; from + this.#pool.pageSize <= limit; from += this.#pool.pageSize) {
      const child = node.children.get(this.#keyAt(tokens, from))
      if (!child) break
      path.push(child)
      node = child
    }
    return path
  }

  lock(path: readonly PrefixNode[]): void {
    this.#tick++
    for (const node of path) {
      if (node.locks++ === 0) this.#unlocked--
      node.lastUse = this.#tick
    }
  }

  unlock(path: readonly PrefixNode[]): void {
    this.#tick++
    for (let i = path.length - 1; i >= 0; i--) {
      const node = path[i]!
      node.lastUse = this.#tick
      if (node.locks === 0) throw new Unreachable('a prefix node was unlocked twice')
      if (--node.locks === 0) {
        this.#unlocked++
        if (node.children.size === 0) this.#offer(node)
      }
    }
  }

  /**
   * Adds the next page of a request's prefix below its locked path and locks it.
   * @returns the node; its page is another than `page` when an equal prefix was there already, and `page` is then free
   */
  extend(path: readonly PrefixNode[], tokens: Int32Array, page: number): PrefixNode {
    const parent = path.at(-1) ?? this.#root
    const key = this.#keyAt(tokens, path.length * this.#pool.pageSize)
    const known = parent.children.get(key)
    if (known) {
      this.lock([known])
      this.#pool.release(page)
      return known
    }
    const node: PrefixNode = { parent, key, page, children: new Map(), locks: 1, lastUse: ++this.#tick }
    parent.children.set(key, node)
    return node
  }

  /** Frees up to `pages` pages. @returns how many */
  evict(pages: number): number {
    let freed = 0
    while (freed < pages && this.#nextCandidate < this.#candidates.length) {
      const { node, use } = this.#candidates[this.#nextCandidate++]!
      if (node.locks > 0 || node.lastUse !== use || node.children.size > 0) continue
      this.#remove(node)
      freed++
      const { parent } = node
      if (parent && parent !== this.#root && parent.locks === 0 && parent.children.size === 0) this.#offer(parent)
    }
    if (this.#nextCandidate > 4096 && this.#nextCandidate * 2 > this.#candidates.length) {
      this.#candidates.splice(0, this.#nextCandidate)
      this.#nextCandidate = 0
    }
    return freed
  }

  /** Forgets everything that nobody uses. @returns pages freed */
  clear(): number {
    return this.evict(Number.POSITIVE_INFINITY)
  }

  #remove(node: PrefixNode): void {
    node.parent!.children.delete(node.key)
    this.#unlocked--
    this.#pool.release(node.page)
  }

  /** A leaf that nobody uses joins the candidates. Uses only grow, so insertion near the end keeps them in order. */
  #offer(node: PrefixNode): void {
    const entry = { node, use: node.lastUse }
    let at = this.#candidates.length
    while (at > this.#nextCandidate && this.#candidates[at - 1]!.use > entry.use) at--
    this.#candidates.splice(at, 0, entry)
  }

  #keyAt(tokens: Int32Array, from: number): string {
    return tokens.subarray(from, from + this.#pool.pageSize).join()
  }
}
