// Experts drawn evenly instead of routed, for measurements (--ep-dispatch-algorithm fake, a name of SGLang's): distinct in a row,
// a pure function of router, row and position. kernels/cuda/router.cu draws the same.
import { expertHash } from './mix-bits.js'

/** The `out.length` experts of `experts` with the largest hashes, largest first; equal ones by id. */
export function drawExperts(router: number, row: number, position: number, experts: number, out: Int32Array): void {
  const keys = Array.from({ length: experts }, (_, e) => (expertHash(router, e, row, position) | 1) >>> 0)
  for (let slot = 0; slot < out.length; slot++) {
    let best = 0
    for (let e = 1; e < experts; e++) if (keys[e]! > keys[best]!) best = e
    out[slot] = best
    keys[best] = 0
  }
}
