// Whatever can wait is a generator step that yields a Wait: a collective, a dispatch, the doorbell, a device event.
// The step never blocks by itself; its driver decides how to wait (spin, sleep, or run another rank in the same thread).

/** A condition that another rank, the node or a device will make true. */
export interface Wait {
  /** Looks again. Cheap, without side effects. */
  ready(): boolean
  /** A word that changes when it is worth looking again: the driver may sleep on it. */
  readonly words: Int32Array
  readonly index: number
  /** Longest sleep before looking again, in milliseconds, for what no word announces (a device). Left out: WAIT_SLICE_MS. */
  readonly sliceMs?: number
  /** Says in the caller's words what is awaited and from which rank, for status and errors. */
  describe(): string
  /** Rank that is awaited, or -1 when it is not a rank. */
  readonly peer: number
}

/** A piece of work that may wait. */
export type Step<T> = Generator<Wait, T, void>

/** What a driver looks at between slices of a wait: the node's abort word. Throws when the node gave up. */
export type AbortCheck = () => void

/** Longest sleep before the abort word is looked at again, in milliseconds. */
export const WAIT_SLICE_MS = 100

/** How often a driver looks before it sleeps. Spinning pays only while every rank has a core to itself. */
export interface SpinPolicy {
  readonly spins: number
}

export const spinPolicy = (ranks: number, cores: number): SpinPolicy => ({ spins: ranks <= cores ? 4000 : 0 })

/**
 * Runs a step to its end in this thread: spins briefly, then sleeps in slices. For one rank that owns its thread.
 * @param onSleep hears what is awaited when spinning was not enough, and null when it has come
 */
export function drive<T>(
  step: Step<T>,
  policy: SpinPolicy,
  checkAbort: AbortCheck,
  onSleep: (wait: Wait | null) => void = () => {},
): T {
  for (;;) {
    const next = step.next()
    if (next.done) return next.value
    const wait = next.value
    let left = policy.spins
    while (!wait.ready() && left-- > 0) {
      // Spinning: the peer is expected within microseconds.
    }
    if (wait.ready()) continue
    onSleep(wait)
    const slice = Math.min(wait.sliceMs ?? WAIT_SLICE_MS, WAIT_SLICE_MS)
    for (;;) {
      const seen = Atomics.load(wait.words, wait.index)
      if (wait.ready()) break
      Atomics.wait(wait.words, wait.index, seen, slice)
      checkAbort()
    }
    onSleep(null)
  }
}
