// Seeded expert loads that look like real ones: skewed, correlated over time, and drifting in three ways. For tests,
// benchmarks and examples; every number follows from the seed. Not here: anything measured.
import { CounterRandom, STREAM } from '../runtime/random.js'
import type { Counts } from './types.js'

/** walk: popularity wanders; shift: one mix of experts gives way to another; burst: experts get hot for a while. */
export type Drift = 'steady' | 'walk' | 'shift' | 'burst'

export interface SyntheticOptions {
  readonly seed: number
  readonly drift: Drift
  readonly steps: number
  readonly layers: number
  readonly experts: number
  /** (token, expert) pairs a layer routes in a step. */
  readonly pairs: number
  /** Spread of log popularity; 0.8 when absent. */
  readonly skew?: number
}

/** Counts [steps][layers][experts], whole numbers. */
export function syntheticCounts(options: SyntheticOptions): Counts {
  const { seed, drift, steps, layers, experts, pairs, skew = 0.8 } = options
  const random = new CounterRandom(seed, STREAM.benchmark)
  const data = new Float64Array(steps * layers * experts)
  for (let l = 0; l < layers; l++) {
    const from = Float64Array.from({ length: experts }, () => skew * normal(random))
    const to = Float64Array.from({ length: experts }, () => skew * normal(random))
    const logits = from.slice()
    const hotUntil = new Int32Array(experts)
    for (let s = 0; s < steps; s++) {
      const share = smoothStep(steps < 2 ? 0 : s / (steps - 1))
      for (let e = 0; e < experts; e++) {
        if (drift === 'walk') logits[e]! = 0.995 * logits[e]! + 0.1 * skew * normal(random)
        if (drift === 'shift') logits[e] = (1 - share) * from[e]! + share * to[e]!
        if (drift === 'burst') {
          if (random.unit() < 0.3 / experts) hotUntil[e] = s + 20 + random.below(60)
          logits[e] = from[e]! + (s < hotUntil[e]! ? 1.5 : 0)
        }
      }
      route(logits, pairs, random, data.subarray((s * layers + l) * experts, (s * layers + l + 1) * experts))
    }
  }
  return Object.freeze({ steps, layers, experts, data })
}

/** Standard normal (Box and Muller 1958). */
function normal(random: CounterRandom): number {
  const radius = Math.sqrt(-2 * Math.log(1 - random.unit()))
  return radius * Math.cos(2 * Math.PI * random.unit())
}

/** 0 until a third, 1 from two thirds on, smooth between. */
function smoothStep(t: number): number {
  const x = Math.min(1, Math.max(0, 3 * t - 1))
  return x * x * (3 - 2 * x)
}

/** Pairs shared out by softmax with noise of about the square root, as independent tokens would have. */
function route(logits: Float64Array, pairs: number, random: CounterRandom, out: Float64Array): void {
  let sum = 0
  for (const x of logits) sum += Math.exp(x)
  for (let e = 0; e < out.length; e++) {
    const mean = (pairs * Math.exp(logits[e]!)) / sum
    out[e] = Math.max(0, Math.round(mean + Math.sqrt(mean) * normal(random)))
  }
}
