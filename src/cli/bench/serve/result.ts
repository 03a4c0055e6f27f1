// From samples to the numbers of a run, and to the block that users of vLLM know. Pure.
import type { Sample } from './client.js'

export type Metric = 'ttft' | 'tpot' | 'itl' | 'e2el'
export const METRICS: readonly Metric[] = ['ttft', 'tpot', 'itl', 'e2el']

export interface Spread {
  readonly mean: number
  readonly median: number
  readonly std: number
  /** By percentile: {"99": 12.3} */
  readonly percentiles: Readonly<Record<string, number>>
}

export interface RunResult {
  readonly requestRate: number | 'inf'
  readonly maxConcurrency: number | null
  readonly durationSeconds: number
  readonly completed: number
  readonly failed: number
  readonly errors: Readonly<Record<string, number>>
  readonly totalInputTokens: number
  readonly totalOutputTokens: number
  readonly requestThroughput: number
  /** Requests a second that kept every goal, or null without goals. */
  readonly requestGoodput: number | null
  readonly outputThroughput: number
  readonly totalTokenThroughput: number
  /** Most requests that ran at one time. */
  readonly peakConcurrency: number
  /** Milliseconds. */
  readonly latency: Readonly<Record<Metric, Spread>>
}

/** Goals in milliseconds. */
export type Goals = Partial<Readonly<Record<Metric, number>>>

export interface ResultOptions {
  readonly requestRate: number
  readonly maxConcurrency: number | null
  readonly percentiles: readonly number[]
  readonly goals: Goals
  readonly durationMs: number
}

const tpotOf = (s: Sample): number => (s.outputTokens > 1 ? (s.ended - s.firstToken) / (s.outputTokens - 1) : 0)

export function resultOf(samples: readonly Sample[], options: ResultOptions): RunResult {
  const good = samples.filter(s => s.error === null)
  const errors: Record<string, number> = {}
  for (const { error } of samples) if (error !== null) errors[error] = (errors[error] ?? 0) + 1
  const values: Readonly<Record<Metric, readonly number[]>> = {
    ttft: good.map(s => s.firstToken - s.begun),
    tpot: good.filter(s => s.outputTokens > 1).map(tpotOf),
    itl: good.flatMap(s => s.itl),
    e2el: good.map(s => s.ended - s.begun),
  }
  const seconds = Math.max(options.durationMs / 1000, 1e-9)
  const sum = (of: (s: Sample) => number) => good.reduce((total, s) => total + of(s), 0)
  const [input, output] = [sum(s => s.promptTokens), sum(s => s.outputTokens)]
  const spread = (metric: Metric) => spreadOf(values[metric], options.percentiles)
  return {
    requestRate: Number.isFinite(options.requestRate) ? options.requestRate : 'inf',
    maxConcurrency: options.maxConcurrency,
    durationSeconds: seconds,
    completed: good.length,
    failed: samples.length - good.length,
    errors,
    totalInputTokens: input,
    totalOutputTokens: output,
    requestThroughput: good.length / seconds,
    requestGoodput:
      Object.keys(options.goals).length === 0 ? null : good.filter(s => keeps(s, options.goals)).length / seconds,
    outputThroughput: output / seconds,
    totalTokenThroughput: (input + output) / seconds,
    peakConcurrency: peak(good),
    latency: { ttft: spread('ttft'), tpot: spread('tpot'), itl: spread('itl'), e2el: spread('e2el') },
  }
}

function keeps(s: Sample, goals: Goals): boolean {
  const longest = s.itl.reduce((most, gap) => Math.max(most, gap), 0)
  const found: Readonly<Record<Metric, number>> = {
    ttft: s.firstToken - s.begun,
    tpot: tpotOf(s),
    itl: longest,
    e2el: s.ended - s.begun,
  }
  return METRICS.every(metric => found[metric] <= (goals[metric] ?? Number.POSITIVE_INFINITY))
}

/** Most requests that ran at one time. */
function peak(samples: readonly Sample[]): number {
  const edges = samples.flatMap(s => [[s.begun, 1] as const, [s.ended, -1] as const])
  edges.sort((a, b) => a[0] - b[0] || a[1] - b[1])
  let now = 0
  let most = 0
  for (const [, step] of edges) {
    now += step
    most = Math.max(most, now)
  }
  return most
}

/** Percentiles by linear interpolation between ranks, as numpy's default. */
export function spreadOf(values: readonly number[], percentiles: readonly number[]): Spread {
  const sorted = Float64Array.from(values).sort()
  const at = (p: number): number => {
    if (sorted.length === 0) return 0
    const place = (p / 100) * (sorted.length - 1)
    const low = Math.floor(place)
    const high = Math.min(low + 1, sorted.length - 1)
    return sorted[low]! + (sorted[high]! - sorted[low]!) * (place - low)
  }
  const mean = sorted.length === 0 ? 0 : sorted.reduce((a, b) => a + b, 0) / sorted.length
  const variance = sorted.length === 0 ? 0 : sorted.reduce((a, b) => a + (b - mean) ** 2, 0) / sorted.length
  return {
    mean,
    median: at(50),
    std: Math.sqrt(variance),
    percentiles: Object.fromEntries(percentiles.map(p => [String(p), at(p)])),
  }
}

const TITLES: Readonly<Record<Metric, readonly [string, string]>> = {
  ttft: ['Time to First Token', 'TTFT'],
  tpot: ['Time per Output Token (excl. 1st token)', 'TPOT'],
  itl: ['Inter-token Latency', 'ITL'],
  e2el: ['End-to-end Latency', 'E2EL'],
}

const WIDTH = 50
const NAME = 40

const heading = (text: string, fill: string): string => {
  const left = Math.floor((WIDTH - text.length - 2) / 2)
  return `${fill.repeat(left)} ${text} ${fill.repeat(WIDTH - text.length - 2 - left)}\n`
}

const line = (name: string, value: string): string => `${name.padEnd(NAME)} ${value}\n`

/** @param shown metrics whose spread is printed */
export function block(result: RunResult, shown: readonly Metric[]): string {
  const fixed = (value: number) => value.toFixed(2)
  let text = heading('Serving Benchmark Result', '=')
  text += line('Successful requests:', String(result.completed))
  text += line('Failed requests:', String(result.failed))
  if (result.maxConcurrency !== null) text += line('Maximum request concurrency:', String(result.maxConcurrency))
  if (result.requestRate !== 'inf') text += line('Request rate configured (RPS):', fixed(result.requestRate))
  text += line('Benchmark duration (s):', fixed(result.durationSeconds))
  text += line('Total input tokens:', String(result.totalInputTokens))
  text += line('Total generated tokens:', String(result.totalOutputTokens))
  text += line('Request throughput (req/s):', fixed(result.requestThroughput))
  if (result.requestGoodput !== null) text += line('Request goodput (req/s):', fixed(result.requestGoodput))
  text += line('Output token throughput (tok/s):', fixed(result.outputThroughput))
  text += line('Peak concurrent requests:', String(result.peakConcurrency))
  text += line('Total token throughput (tok/s):', fixed(result.totalTokenThroughput))
  for (const metric of shown) {
    const [title, short] = TITLES[metric]
    const { mean, median, percentiles } = result.latency[metric]
    text += heading(title, '-')
    text += line(`Mean ${short} (ms):`, fixed(mean))
    text += line(`Median ${short} (ms):`, fixed(median))
    for (const [p, value] of Object.entries(percentiles)) text += line(`P${p} ${short} (ms):`, fixed(value))
  }
  return `${text}${'='.repeat(WIDTH)}\n`
}
