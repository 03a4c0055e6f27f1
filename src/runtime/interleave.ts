// The one-thread driver: runs several ranks' steps in one thread, in a seeded order, to find mistakes of ordering.
// A step that waits is set aside until its wait is ready; when nobody can move, that is a deadlock and an error.
import { CounterRandom, STREAM } from './random.js'
import type { Step, Wait } from './wait.js'

/** All ranks wait and none can go on. */
export class Deadlock extends Error {
  constructor(waits: readonly (Wait | null)[]) {
    const who = waits.flatMap((wait, rank) => (wait ? [`rank ${rank}: ${wait.describe()}`] : []))
    super(`no rank can move: ${who.join('; ')}`)
    this.name = 'Deadlock'
  }
}

/**
 * Runs all steps to their ends.
 * @param seed decides who moves next; any order must give the same results
 * @returns the steps' results, in order
 */
export function interleave<T>(steps: readonly Step<T>[], seed: number): T[] {
  const random = new CounterRandom(seed, STREAM.wakeOrder)
  const results = new Array<T>(steps.length)
  const waits: (Wait | null)[] = steps.map(() => null)
  const running = new Set(steps.keys())
  while (running.size > 0) {
    const able = [...running].filter(rank => waits[rank] === null || waits[rank]!.ready())
    if (able.length === 0) {
      // What no word announces (a device) may come at any time.
      if (waits.some(wait => wait?.sliceMs !== undefined)) continue
      throw new Deadlock(waits)
    }
    const rank = able[random.below(able.length)]!
    const next = steps[rank]!.next()
    if (next.done) {
      results[rank] = next.value
      waits[rank] = null
      running.delete(rank)
    } else {
      waits[rank] = next.value
    }
  }
  return results
}
