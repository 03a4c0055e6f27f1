// Measures an engine from outside, as a client sees it: prompts of random tokens, greedy, end tokens ignored.
// Decode speed counts only the time in which the whole batch decodes, prompt speed only the time until all have begun.
import { type GenerationEngine, GREEDY } from '../../engine/request.js'
import { CounterRandom, STREAM } from '../../runtime/random.js'

export interface Workload {
  readonly batch: number
  readonly promptTokens: number
  readonly outputTokens: number
  readonly seed: number
}

export interface Speed {
  readonly batch: number
  readonly promptTokensPerSecond: number
  readonly decodeTokensPerSecond: number
  readonly decodeStepMs: number
  /** Mean time from arrival to the first token. */
  readonly firstTokenMs: number
}

interface Track {
  readonly at: number[]
}

/** What keeps requests from beginning. */
interface Gate {
  pause(): void
  resume(): void
}
/** More than messages to the ranks take. */
const ARRIVAL_MS = 50

/**
 * Runs one batch. `now` in milliseconds.
 * @param gate held until all requests have arrived, so that they begin together; the time counts from then on
 */
export async function measure(
  engine: GenerationEngine,
  load: Workload,
  now: () => number,
  gate?: Gate,
): Promise<Speed> {
  const random = new CounterRandom(load.seed, STREAM.benchmark)
  const prompts = Array.from({ length: load.batch }, () =>
    Array.from({ length: load.promptTokens }, () => random.below(engine.vocabSize)),
  )
  const sampling = { ...GREEDY, maxTokens: load.outputTokens, ignoreEos: true }
  gate?.pause()
  let begin = now()
  const running = Promise.all(
    prompts.map(async (inputIds): Promise<Track> => {
      const at: number[] = []
      for await (const event of engine.generate({ inputIds, sampling })) for (const _ of event.tokenIds) at.push(now())
      return { at }
    }),
  )
  if (gate) {
    let timer: NodeJS.Timeout | undefined
    const arrived = new Promise(resolve => {
      timer = setTimeout(resolve, ARRIVAL_MS)
    })
    try {
      // A request that is refused ends the wait with its error.
      await Promise.race([arrived, running])
    } finally {
      clearTimeout(timer)
      begin = now()
      gate.resume()
    }
  }
  const tracks = await running
  return speedOf(load, tracks, begin)
}

/** Pure: from the arrival times of all tokens to speeds. */
export function speedOf(load: Workload, tracks: readonly Track[], begin: number): Speed {
  const firsts = tracks.map(track => track.at[0]!)
  const lasts = tracks.map(track => track.at.at(-1)!)
  const allBegun = Math.max(...firsts)
  // Streams so short that one ended before another began leave no time in which all decode: then the whole time counts.
  const together = Math.min(...lasts) > allBegun
  const from = together ? allBegun : Math.min(...firsts)
  const to = together ? Math.min(...lasts) : Math.max(...lasts)
  const decoded = tracks.reduce((sum, { at }) => sum + at.slice(1).filter(t => t > from && t <= to).length, 0)
  const rate = (1000 * decoded) / Math.max(to - from, 1e-3)
  return {
    batch: load.batch,
    promptTokensPerSecond: (1000 * load.batch * load.promptTokens) / (allBegun - begin),
    decodeTokensPerSecond: rate,
    decodeStepMs: (1000 * load.batch) / rate,
    firstTokenMs: firsts.reduce((sum, t) => sum + t - begin, 0) / firsts.length,
  }
}
