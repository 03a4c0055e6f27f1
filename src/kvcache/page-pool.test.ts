// The pool of pages: each page has one owner at a time.
import { describe, expect, it } from 'vitest'
import { PagePool } from './index.js'

describe('PagePool', () => {
  it('hands out every page once and then none', () => {
    const pool = new PagePool(5, 16)
    const taken = Array.from({ length: 5 }, () => pool.take())
    expect(new Set(taken).size).toBe(5)
    expect(pool.take()).toBeUndefined()
    pool.release(taken[2]!)
    expect(pool.take()).toBe(taken[2])
    expect(pool.totalTokens).toBe(80)
    expect(pool.pagesFor(17)).toBe(2)
  })

  it('notices a page released twice', () => {
    const pool = new PagePool(1, 1)
    expect(() => pool.release(0)).toThrow(/released twice/)
  })
})
