// How words are scrambled where no secrecy and no stream is needed, only the same word everywhere, on GPUs too.

/** Finaliser of MurmurHash3 (Appleby): every bit of a 32-bit word reaches every bit of the result, an unsigned word. */
export function mixBits(word: number): number {
  let h = Math.imul(word ^ (word >>> 16), 0x85ebca6b)
  h = Math.imul(h ^ (h >>> 13), 0xc2b2ae35)
  return (h ^ (h >>> 16)) >>> 0
}

/**
 * A word for an expert of a layer and a token, which `token` (any 32-bit word) and its position name. kernels/cuda/rows.cu and
 * router.cu compute the same.
 */
export const expertHash = (layer: number, expert: number, token: number, position: number): number =>
  mixBits(mixBits(mixBits(token) ^ Math.imul(position, 0x9e3779b1)) ^ mixBits(Math.imul(layer, 0x27d4eb2f) + expert))
