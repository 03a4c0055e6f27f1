// MT19937 (Matsumoto and Nishimura 1998) with the seeding and the draws of Python's `random.Random`, because SGLang's static
// replica map is made with them. Only for that: our own randomness is runtime/random.ts.

const N = 624
const M = 397

export class PythonRandom {
  readonly #state = new Uint32Array(N)
  #next = N

  /** As `random.Random(seed)` for 0 <= seed < 2^32: init_by_array with one word. */
  constructor(seed: number) {
    const mt = this.#state
    mt[0] = 19650218
    for (let i = 1; i < N; i++) mt[i] = Math.imul(1812433253, mt[i - 1]! ^ (mt[i - 1]! >>> 30)) + i
    let i = 1
    for (let k = 0; k < N; k++) {
      // The key has one word, so its index stays 0.
      mt[i] = (mt[i]! ^ Math.imul(mt[i - 1]! ^ (mt[i - 1]! >>> 30), 1664525)) + seed
      i = this.#wrap(i + 1)
    }
    for (let k = 0; k < N - 1; k++) {
      mt[i] = (mt[i]! ^ Math.imul(mt[i - 1]! ^ (mt[i - 1]! >>> 30), 1566083941)) - i
      i = this.#wrap(i + 1)
    }
    mt[0] = 0x80000000
  }

  u32(): number {
    if (this.#next === N) this.#twist()
    let y = this.#state[this.#next++]!
    y ^= y >>> 11
    y ^= (y << 7) & 0x9d2c5680
    y ^= (y << 15) & 0xefc60000
    y ^= y >>> 18
    return y >>> 0
  }

  /** Uniform in [0, n), 1 <= n < 2^32: as many top bits as n has, drawn again until below n. */
  below(n: number): number {
    const shift = Math.clz32(n)
    let r = this.u32() >>> shift
    while (r >= n) r = this.u32() >>> shift
    return r
  }

  /** k distinct items in random order: from a shrinking pool when the items are few, else by rejection. */
  sample<T>(items: readonly T[], k: number): T[] {
    const n = items.length
    const out: T[] = []
    const few = 21 + (k > 5 ? 4 ** Math.ceil(Math.log(k * 3) / Math.log(4)) : 0)
    if (n <= few) {
      const pool = [...items]
      for (let i = 0; i < k; i++) {
        const j = this.below(n - i)
        out.push(pool[j]!)
        pool[j] = pool[n - i - 1]!
      }
      return out
    }
    const taken = new Set<number>()
    while (out.length < k) {
      let j = this.below(n)
      while (taken.has(j)) j = this.below(n)
      taken.add(j)
      out.push(items[j]!)
    }
    return out
  }

  /** In place, from the end. */
  shuffle<T>(items: T[]): void {
    for (let i = items.length - 1; i >= 1; i--) {
      const j = this.below(i + 1)
      const held = items[i]!
      items[i] = items[j]!
      items[j] = held
    }
  }

  #wrap(i: number): number {
    if (i < N) return i
    this.#state[0] = this.#state[N - 1]!
    return 1
  }

  #twist(): void {
    const mt = this.#state
    for (let i = 0; i < N; i++) {
      const y = (mt[i]! & 0x80000000) | (mt[(i + 1) % N]! & 0x7fffffff)
      mt[i] = mt[(i + M) % N]! ^ (y >>> 1) ^ (y & 1 ? 0x9908b0df : 0)
    }
    this.#next = 0
  }
}
