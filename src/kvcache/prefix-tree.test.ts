// The tree of cached prefixes: what it finds, shares and evicts, and its books under any mix of requests.
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { PagePool, type PrefixNode, PrefixTree } from './index.js'

const make = (pages: number, pageSize = 2) => {
  const pool = new PagePool(pages, pageSize)
  return { pool, tree: new PrefixTree(pool) }
}

/** Adds all whole pages of `tokens` as a request would; returns its locked path. */
function hold({ pool, tree }: ReturnType<typeof make>, tokens: readonly number[]): PrefixNode[] {
  const ids = Int32Array.from(tokens)
  const path = tree.match(ids, ids.length)
  tree.lock(path)
  while ((path.length + 1) * pool.pageSize <= ids.length) {
    if (pool.freePages === 0 && tree.evict(1) === 0) throw new Error('pool is full')
    path.push(tree.extend(path, ids, pool.take()!))
  }
  return path
}

describe('PrefixTree', () => {
  it('finds the longest prefix in whole pages', () => {
    const cache = make(10)
    cache.tree.unlock(hold(cache, [1, 2, 3, 4, 5]))
    expect(cache.tree.match(Int32Array.of(1, 2, 3, 4, 9, 9), 6)).toHaveLength(2)
    expect(cache.tree.match(Int32Array.of(1, 2, 3, 4, 9, 9), 3)).toHaveLength(1)
    expect(cache.tree.match(Int32Array.of(1, 9, 3, 4), 4)).toHaveLength(0)
  })

  it('shares a page computed twice and frees the copy', () => {
    const cache = make(10)
    const ids = Int32Array.of(1, 2)
    const a = cache.tree.extend([], ids, cache.pool.take()!)
    const b = cache.tree.extend([], ids, cache.pool.take()!)
    expect(b).toBe(a)
    expect(cache.pool.freePages).toBe(9)
  })

  it('evicts the least recently used leaf first, never what is locked', () => {
    const cache = make(4)
    const { tree, pool } = cache
    tree.unlock(hold(cache, [1, 1]))
    tree.unlock(hold(cache, [2, 2]))
    const kept = hold(cache, [3, 3])
    tree.unlock(hold(cache, [1, 1]))
    expect(tree.evict(1)).toBe(1)
    expect(tree.match(Int32Array.of(2, 2), 2)).toHaveLength(0)
    expect(tree.match(Int32Array.of(1, 1), 2)).toHaveLength(1)
    expect(tree.clear()).toBe(1)
    expect(pool.freePages).toBe(3)
    expect(tree.match(Int32Array.of(3, 3), 2)).toHaveLength(1)
    tree.unlock(kept)
    expect(tree.clear()).toBe(1)
    expect(pool.freePages).toBe(4)
  })

  it('evicts a parent only after its children', () => {
    const cache = make(4)
    cache.tree.unlock(hold(cache, [1, 2, 3, 4, 5, 6]))
    expect(cache.tree.evict(1)).toBe(1)
    expect(cache.tree.match(Int32Array.of(1, 2, 3, 4, 5, 6), 6)).toHaveLength(2)
  })

  it('keeps its books under any mix of requests', () => {
    const op = fc.record({
      tokens: fc.array(fc.integer({ min: 0, max: 2 }), { minLength: 1, maxLength: 12 }),
      release: fc.nat(),
    })
    fc.assert(
      fc.property(fc.array(op, { maxLength: 60 }), ops => {
        const cache = make(14)
        const { tree, pool } = cache
        const held: PrefixNode[][] = []
        const check = () => {
          const pages = held.flat().map(node => node.page)
          const locked = new Set(pages)
          expect(pool.freePages + tree.evictablePages + locked.size).toBe(14)
        }
        for (const { tokens, release } of ops) {
          if (held.length > 0 && release % 2 === 0) tree.unlock(held.splice(release % held.length, 1)[0]!)
          check()
          if (pool.freePages + tree.evictablePages < Math.floor(tokens.length / 2)) continue
          const path = hold(cache, tokens)
          held.push(path)
          expect(tree.match(Int32Array.from(tokens), tokens.length).map(n => n.page)).toEqual(path.map(n => n.page))
          check()
        }
        for (const path of held) tree.unlock(path)
        tree.clear()
        expect(pool.freePages).toBe(14)
        expect(tree.evictablePages).toBe(0)
      }),
    )
  })
})
