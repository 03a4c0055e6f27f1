// Sends all prompts of a run: at once or by a Poisson process, with a limit of how many run together.
import { CounterRandom, STREAM } from '../../../runtime/random.js'
import type { Sample } from './client.js'
import type { BenchPrompt } from './datasets.js'

export interface LoadOptions {
  /** Requests a second; Infinity: all at once. */
  readonly requestRate: number
  readonly maxConcurrency: number | null
  readonly seed: number
}

/** Seconds from the beginning at which each request is due: exponential gaps, so that arrivals are a Poisson process. */
export function arrivals(count: number, { requestRate, seed }: LoadOptions): readonly number[] {
  if (requestRate === Number.POSITIVE_INFINITY) return new Array<number>(count).fill(0)
  const random = new CounterRandom(seed + 1, STREAM.benchmark)
  let at = 0
  return Array.from({ length: count }, (_, i) => {
    if (i > 0) at -= Math.log(1 - random.unit()) / requestRate
    return at
  })
}

/** Runs every prompt; samples in the order of prompts. A request that waits for a free place has not begun. */
export async function runLoad(
  prompts: readonly BenchPrompt[],
  options: LoadOptions,
  send: (prompt: BenchPrompt) => Promise<Sample>,
  signal: AbortSignal,
): Promise<readonly Sample[]> {
  const due = arrivals(prompts.length, options)
  const places = new Places(options.maxConcurrency ?? Number.POSITIVE_INFINITY)
  const begin = performance.now()
  const running: Promise<Sample>[] = []
  for (const [i, prompt] of prompts.entries()) {
    const wait = begin + 1000 * due[i]! - performance.now()
    if (wait > 0) await pause(wait, signal)
    await places.take()
    if (signal.aborted) break
    running.push(send(prompt).finally(() => places.free()))
  }
  return Promise.all(running)
}

function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise(resolve => {
    const end = () => {
      clearTimeout(timer)
      signal.removeEventListener('abort', end)
      resolve()
    }
    const timer = setTimeout(end, ms)
    signal.addEventListener('abort', end, { once: true })
  })
}

/** Counted places, handed out in order. */
class Places {
  #left: number
  readonly #waiting: (() => void)[] = []

  constructor(count: number) {
    this.#left = count
  }

  async take(): Promise<void> {
    if (this.#left > 0) this.#left--
    else await new Promise<void>(resolve => this.#waiting.push(resolve))
  }

  free(): void {
    const next = this.#waiting.shift()
    if (next) next()
    else this.#left++
  }
}
