// The pages of one attention-DP rank's KV cache: which are free. Who holds the others is the prefix tree's and the
// scheduler's business.
import { Unreachable } from '../config/errors.js'

export class PagePool {
  readonly pages: number
  readonly pageSize: number
  /** Free page numbers; the last one is taken next, so that recently used (cache-warm) pages come back first. */
  readonly #free: number[]
  readonly #isFree: Uint8Array

  constructor(pages: number, pageSize: number) {
    this.pages = pages
    this.pageSize = pageSize
    this.#free = Array.from({ length: pages }, (_, i) => pages - 1 - i)
    this.#isFree = new Uint8Array(pages).fill(1)
  }

  pagesFor(tokens: number): number {
    return Math.ceil(tokens / this.pageSize)
  }

  get freePages(): number {
    return this.#free.length
  }

  /** A free page, or undefined when there is none. */
  take(): number | undefined {
    const page = this.#free.pop()
    if (page !== undefined) this.#isFree[page] = 0
    return page
  }

  release(page: number): void {
    if (this.#isFree[page] !== 0) throw new Unreachable(`KV page ${page} was released twice`)
    this.#isFree[page] = 1
    this.#free.push(page)
  }

  /** Tokens that fit into the pool. */
  get totalTokens(): number {
    return this.pages * this.pageSize
  }
}
