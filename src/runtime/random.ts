// Counter-based randomness: a value is a pure function of its key and counter (Philox 4x32-10, Salmon et al., SC'11), so
// the same request samples the same text whatever shares its batch and whichever rank or device computes it.

const M0 = 0xd2511f53
const M1 = 0xcd9e8d57
const W0 = 0x9e3779b9
const W1 = 0xbb67ae85

/** High 32 bits of a·b for u32 a and b. */
function mulhi(a: number, b: number): number {
  const al = a & 0xffff
  const ah = a >>> 16
  const bl = b & 0xffff
  const bh = b >>> 16
  const mid = ah * bl + ((al * bl) >>> 16)
  const mid2 = al * bh + (mid & 0xffff)
  return (ah * bh + Math.floor(mid / 65536) + Math.floor(mid2 / 65536)) >>> 0
}

/** The four u32 words of Philox 4x32-10 for a 64-bit key and a 128-bit counter, written into `out`. */
export function philox(
  keyLow: number,
  keyHigh: number,
  c0: number,
  c1: number,
  c2: number,
  c3: number,
  out: Uint32Array,
): void {
  let k0 = keyLow >>> 0
  let k1 = keyHigh >>> 0
  for (let round = 0; round < 10; round++) {
    const hi0 = mulhi(M0, c0)
    const lo0 = Math.imul(M0, c0) >>> 0
    const hi1 = mulhi(M1, c2)
    const lo1 = Math.imul(M1, c2) >>> 0
    c0 = (hi1 ^ c1 ^ k0) >>> 0
    c1 = lo1
    c2 = (hi0 ^ c3 ^ k1) >>> 0
    c3 = lo0
    k0 = (k0 + W0) >>> 0
    k1 = (k1 + W1) >>> 0
  }
  out[0] = c0
  out[1] = c1
  out[2] = c2
  out[3] = c3
}

/** Sub-streams of one seed, so that uses never share noise. The fourth counter word. */
export const STREAM = { sampling: 0, dummyWeights: 1, replicaChoice: 2, wakeOrder: 3, benchmark: 4 } as const

const words = new Uint32Array(4)

/**
 * Gumbel noise of token `token` at `position` under `seed`: counter (token >> 2, position, 0, sampling), word token & 3;
 * u = (word + 0.5) / 2^32 in double precision; noise = -ln(-ln(u)).
 */
export function gumbel(seedLow: number, seedHigh: number, position: number, token: number): number {
  philox(seedLow, seedHigh, token >>> 2, position, 0, STREAM.sampling, words)
  const u = (words[token & 3]! + 0.5) / 4294967296
  return -Math.log(-Math.log(u))
}

/** A sequence of u32 and [0, 1) numbers with an explicit seed; the only kind of generator outside tests. */
export class CounterRandom {
  readonly #seed: number
  readonly #stream: number
  readonly #words = new Uint32Array(4)
  #counter = 0
  constructor(seed: number, stream: number) {
    this.#seed = seed
    this.#stream = stream
  }

  u32(): number {
    const lane = this.#counter & 3
    if (lane === 0) {
      const block = Math.floor(this.#counter / 4)
      philox(this.#seed, 0, block >>> 0, Math.floor(block / 4294967296), 0, this.#stream, this.#words)
    }
    this.#counter++
    return this.#words[lane]!
  }

  /** Uniform in [0, 1). */
  unit(): number {
    return this.u32() / 4294967296
  }

  /** Uniform integer in [0, n). */
  below(n: number): number {
    return Math.floor(this.unit() * n)
  }
}
