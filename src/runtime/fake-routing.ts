// Experts drawn evenly instead of routed, for measurements (--ep-dispatch-algorithm fake, a name of SGLang's): distinct in a row,
// a pure function of router, row and position. kernels/cuda/router.cu draws the same.

/** Finaliser of MurmurHash3 (Appleby): every input bit reaches every output bit. */
function mix(h: number): number {
  h = Math.imul(h ^ (h >>> 16), 0x85ebca6b)
  h = Math.imul(h ^ (h >>> 13), 0xc2b2ae35)
  return (h ^ (h >>> 16)) >>> 0
}

/** The `out.length` experts of `experts` with the largest hashes, largest first; equal ones by id. */
export function drawExperts(router: number, row: number, position: number, experts: number, out: Int32Array): void {
  const token = mix(mix(row) ^ Math.imul(position, 0x9e3779b1))
  const keys = Array.from(
    { length: experts },
    (_, e) => (mix(token ^ mix(Math.imul(router, 0x27d4eb2f) + e)) | 1) >>> 0,
  )
  for (let slot = 0; slot < out.length; slot++) {
    let best = 0
    for (let e = 1; e < experts; e++) if (keys[e]! > keys[best]!) best = e
    out[slot] = best
    keys[best] = 0
  }
}
