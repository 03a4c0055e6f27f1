// Weights that a later product reads, asked for while the memory has nothing to do: a small product (the router's) sends those of the
// next large one that is bound after it to the L2 cache. Programs are bound in the order in which they run, so that is the next
// layer's first. Only a hint: nothing depends on it.
import type { CudaKernels } from '../kernels.js'

/** Elements of a matrix that others may be asked for beside. */
const SMALL = 1 << 20
/** What the cache keeps while the experts of a row or two pass by; more is left to its own kernel. */
const MOST_BYTES = 24 << 20

export interface ReadAhead {
  /** For measurements. */
  enabled: boolean
  waiting: ((address: number, bytes: number) => void) | null
}

const states = new WeakMap<CudaKernels, ReadAhead>()

export function readAheadOf(d: CudaKernels): ReadAhead {
  const known = states.get(d)
  if (known) return known
  const made: ReadAhead = { enabled: true, waiting: null }
  states.set(d, made)
  return made
}

/** A product of an n × k matrix of bf16 at `address` was bound; `ask` makes it ask for other memory when it runs. */
export function boundProduct(
  d: CudaKernels,
  { n, k, address }: { readonly n: number; readonly k: number; readonly address: number },
  ask: (address: number, bytes: number) => void,
): void {
  const state = readAheadOf(d)
  if (n * k <= SMALL) {
    state.waiting = state.enabled ? ask : null
    return
  }
  const bytes = n * k * 2
  if (bytes <= MOST_BYTES) state.waiting?.(address, bytes)
  state.waiting = null
}
