// The paged KV pool of one attention-DP rank: which pages are free, and how many are promised to admitted requests.
// A request's pages are taken as it grows, but its whole need is reserved when it is admitted, so it never runs dry.
import { Unreachable } from '../config/errors.js'

export class PagePool {
  readonly pages: number
  readonly pageSize: number
  /** Free page numbers; the last one is taken next, so that recently used (cache-warm) pages come back first. */
  readonly #free: number[]
  #reserved = 0

  constructor(pages: number, pageSize: number) {
    this.pages = pages
    this.pageSize = pageSize
    this.#free = Array.from({ length: pages }, (_, i) => pages - 1 - i)
  }

  pagesFor(tokens: number): number {
    return Math.ceil(tokens / this.pageSize)
  }

  /** Promises `pages` pages to a request. @returns false, and promises nothing, when they are not there. */
  reserve(pages: number): boolean {
    if (this.#free.length - this.#reserved < pages) return false
    this.#reserved += pages
    return true
  }

  /** Gives back a promise that was not used. */
  unreserve(pages: number): void {
    this.#reserved -= pages
    if (this.#reserved < 0) throw new Unreachable('more KV pages unreserved than were reserved')
  }

  /** Takes one reserved page. */
  take(): number {
    const page = this.#free.pop()
    if (page === undefined || this.#reserved === 0) throw new Unreachable('a KV page was taken that was not reserved')
    this.#reserved--
    return page
  }

  release(pages: readonly number[]): void {
    for (const page of pages) this.#free.push(page)
    if (this.#free.length > this.pages) throw new Unreachable('a KV page was released twice')
  }

  /** Tokens that fit into the pool. */
  get totalTokens(): number {
    return this.pages * this.pageSize
  }

  /** Tokens whose pages are in use (whole pages). */
  get usedTokens(): number {
    return (this.pages - this.#free.length) * this.pageSize
  }
}
