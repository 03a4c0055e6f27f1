// The metrics of one server: counted where requests run, read from the engine's state when somebody asks.
// Colons in names are for recording rules (promtool says so), hence switchyard_ where SGLang has sglang: .
import { Counter, Gauge, Registry } from 'prom-client'
import type { DpRankState, GenerationEngine, GenerationRequest } from '../../engine/request.js'
import { Buckets, LONG_SECONDS, TOKEN_COUNTS, TOKEN_SECONDS } from './buckets.js'
import type { RequestObserver, RequestWatch } from './observer.js'
import { Rate } from './rate.js'

const P = 'switchyard_'

const HISTOGRAMS = {
  time_to_first_token_seconds: ['Seconds from the arrival of a request to its first token.', LONG_SECONDS],
  inter_token_latency_seconds: ['Seconds between tokens of one request.', TOKEN_SECONDS],
  e2e_request_latency_seconds: ['Seconds from the arrival of a request to its end.', LONG_SECONDS],
  queue_time_seconds: ['Seconds a request waited before it was admitted.', LONG_SECONDS],
  request_prompt_tokens: ['Tokens of the prompt of a request.', TOKEN_COUNTS],
  request_generation_tokens: ['Tokens that a request made.', TOKEN_COUNTS],
} as const satisfies Readonly<Record<string, readonly [string, readonly number[]]>>

type HistogramName = keyof typeof HISTOGRAMS
const HISTOGRAM_NAMES = Object.keys(HISTOGRAMS) as HistogramName[]

/** Everything that is counted for one DP rank. */
class RankCounts {
  readonly histograms = Object.fromEntries(
    HISTOGRAM_NAMES.map(name => [name, new Buckets(HISTOGRAMS[name][1])]),
  ) as Readonly<Record<HistogramName, Buckets>>
  readonly rate = new Rate()
  promptTokens = 0
  generationTokens = 0
  cachedTokens = 0
  requests = 0
  aborted = 0
  readonly finished: Record<string, number> = { stop: 0, length: 0, abort: 0 }
}

/** A number of the state of a DP rank, as a gauge or as a counter that the rank keeps. */
interface StateMetric {
  readonly name: string
  readonly help: string
  readonly kind: 'gauge' | 'counter'
  read(state: DpRankState): number | undefined
}

const share = (part: number, whole: number): number => (whole > 0 ? part / whole : 0)

const STATE_METRICS: readonly StateMetric[] = [
  { name: 'num_running_reqs', kind: 'gauge', help: 'Requests that run.', read: s => s.running },
  { name: 'num_queue_reqs', kind: 'gauge', help: 'Requests that wait to be admitted.', read: s => s.waiting },
  { name: 'num_used_tokens', kind: 'gauge', help: 'Tokens in the KV cache that are in use.', read: s => s.usedTokens },
  { name: 'max_total_num_tokens', kind: 'gauge', help: 'Tokens the KV cache holds.', read: s => s.totalTokens },
  {
    name: 'token_usage',
    kind: 'gauge',
    help: 'Share of the KV cache that is in use, 0 to 1.',
    read: s => share(s.usedTokens, s.totalTokens),
  },
  {
    name: 'cache_hit_rate',
    kind: 'gauge',
    help: 'Share of prompt tokens that were found in the prefix cache since the start, 0 to 1.',
    read: s => share(s.cachedTokens, s.cachedTokens + s.prefilledTokens),
  },
  {
    name: 'vote_wait_seconds',
    kind: 'gauge',
    help: 'Seconds that the last step with tokens waited for the votes of other ranks.',
    read: s => s.voteWaitMs / 1000,
  },
  {
    name: 'attention_pairs',
    kind: 'gauge',
    help: 'Causal query-key pairs of the batch of the last step.',
    read: s => s.attentionPairs,
  },
  { name: 'steps_total', kind: 'counter', help: 'Steps with tokens.', read: s => s.steps },
  {
    name: 'prefilled_tokens_total',
    kind: 'counter',
    help: 'Prompt tokens that were computed, those of retracted requests each time.',
    read: s => s.prefilledTokens,
  },
  {
    name: 'num_retracted_reqs_total',
    kind: 'counter',
    help: 'Times a request was put back into the queue because the KV cache was full.',
    read: s => s.retractions,
  },
  {
    name: 'normal_dispatch_steps_total',
    kind: 'counter',
    help: 'Steps with tokens whose rows went to experts by normal dispatch.',
    read: s => s.dispatchSteps.normal,
  },
  {
    name: 'low_latency_dispatch_steps_total',
    kind: 'counter',
    help: 'Steps with tokens whose rows went to experts by low-latency dispatch.',
    read: s => s.dispatchSteps.low_latency,
  },
]

type CountOf = (counts: RankCounts) => number

const COUNTERS: readonly (readonly [name: string, help: string, count: CountOf])[] = [
  ['prompt_tokens_total', 'Prompt tokens of requests that have ended.', c => c.promptTokens],
  ['generation_tokens_total', 'Tokens that were made.', c => c.generationTokens],
  ['cached_tokens_total', 'Prompt tokens of ended requests that were found in the prefix cache.', c => c.cachedTokens],
  ['num_requests_total', 'Requests that have ended, in whatever way.', c => c.requests],
  ['num_aborted_requests_total', 'Requests that ended without being finished.', c => c.aborted],
]

export class Metrics implements RequestObserver {
  readonly #registry = new Registry()
  readonly #ranks: RankCounts[] = []
  readonly #engine: () => GenerationEngine | null
  readonly #now: () => number
  readonly #http: Counter<'method' | 'path' | 'status'>

  /** @param now seconds */
  constructor(engine: () => GenerationEngine | null, now: () => number = () => performance.now() / 1000) {
    this.#engine = engine
    this.#now = now
    this.#http = new Counter({
      name: `${P}http_requests_total`,
      help: 'HTTP requests by method, route and status.',
      labelNames: ['method', 'path', 'status'],
      registers: [this.#registry],
    })
    for (const metric of STATE_METRICS) this.#addState(metric)
    for (const [name, help, count] of COUNTERS) this.#addCounter(name, help, count)
    this.#addFinished()
    this.#addGauge('gen_throughput', 'Tokens made a second, over the last ten seconds.', c =>
      c.rate.perSecond(this.#now()),
    )
  }

  /** @param path the route, not what the client wrote */
  http(method: string, path: string, status: number): void {
    this.#http.inc({ method, path, status: String(status) })
  }

  /** Tokens a second of a DP rank over the last ten seconds. */
  throughput(dpRank: number): number {
    return this.#ranks[dpRank]?.rate.perSecond(this.#now()) ?? 0
  }

  begin(request: GenerationRequest): RequestWatch {
    const begun = this.#now()
    let last = 0
    let dpRank = 0
    let tokens = 0
    let finished = false
    return {
      event: event => {
        dpRank = event.dpRank ?? dpRank
        const counts = this.#rank(dpRank)
        const now = this.#now()
        const fresh = event.tokenIds.length
        if (fresh > 0) {
          if (tokens === 0) counts.histograms.time_to_first_token_seconds.observe(now - begun)
          else counts.histograms.inter_token_latency_seconds.observe((now - last) / fresh, fresh)
          tokens += fresh
          last = now
          counts.generationTokens += fresh
          counts.rate.add(fresh, now)
        }
        if (event.finish === null) return
        finished = event.finish.reason !== 'abort'
        const { reason, usage, timings } = event.finish
        counts.finished[reason]!++
        counts.cachedTokens += usage.cachedTokens
        counts.histograms.queue_time_seconds.observe(timings.queueMs / 1000)
        counts.histograms.e2e_request_latency_seconds.observe(now - begun)
        counts.histograms.request_generation_tokens.observe(usage.completionTokens)
      },
      end: () => {
        const counts = this.#rank(dpRank)
        counts.requests++
        if (!finished) counts.aborted++
        counts.promptTokens += request.inputIds.length
        counts.histograms.request_prompt_tokens.observe(request.inputIds.length)
      },
    }
  }

  /** The text format, version 0.0.4. */
  async text(): Promise<string> {
    let text = await this.#registry.metrics()
    for (const name of HISTOGRAM_NAMES) {
      text += `\n# HELP ${P}${name} ${HISTOGRAMS[name][0]}\n# TYPE ${P}${name} histogram\n`
      this.#eachRank((labels, counts) => {
        const shown = Object.entries(labels).map(([key, value]) => `${key}="${escapeLabel(value)}"`)
        text += counts.histograms[name].lines(P + name, shown.join(','))
      })
    }
    return text
  }

  get contentType(): string {
    return this.#registry.contentType
  }

  #rank(dpRank: number): RankCounts {
    this.#ranks[dpRank] ??= new RankCounts()
    return this.#ranks[dpRank]
  }

  #eachRank(visit: (labels: { model_name: string; dp_rank: string }, counts: RankCounts) => void): void {
    const engine = this.#engine()
    if (engine === null) return
    for (const { dpRank } of engine.state()) {
      visit({ model_name: engine.modelName, dp_rank: String(dpRank) }, this.#rank(dpRank))
    }
  }

  #addState({ name, help, kind, read }: StateMetric): void {
    const options = {
      name: P + name,
      help,
      labelNames: ['model_name', 'dp_rank'] as const,
      registers: [this.#registry],
    }
    const engine = this.#engine
    const visit = (set: (labels: { model_name: string; dp_rank: string }, value: number) => void): void => {
      const now = engine()
      for (const state of now?.state() ?? []) {
        const value = read(state)
        if (value !== undefined && Number.isFinite(value)) {
          set({ model_name: now!.modelName, dp_rank: String(state.dpRank) }, value)
        }
      }
    }
    if (kind === 'gauge') {
      const gauge: Gauge = new Gauge({ ...options, collect: () => visit((labels, value) => gauge.set(labels, value)) })
    } else {
      const counter: Counter = new Counter({
        ...options,
        collect: () => {
          counter.reset()
          visit((labels, value) => counter.inc(labels, value))
        },
      })
    }
  }

  #addCounter(name: string, help: string, count: CountOf): void {
    const counter: Counter = new Counter({
      name: P + name,
      help,
      labelNames: ['model_name', 'dp_rank'],
      registers: [this.#registry],
      collect: () => {
        counter.reset()
        this.#eachRank((labels, counts) => counter.inc(labels, count(counts)))
      },
    })
  }

  #addGauge(name: string, help: string, value: CountOf): void {
    const gauge: Gauge = new Gauge({
      name: P + name,
      help,
      labelNames: ['model_name', 'dp_rank'],
      registers: [this.#registry],
      collect: () => this.#eachRank((labels, counts) => gauge.set(labels, value(counts))),
    })
  }

  #addFinished(): void {
    const counter: Counter = new Counter({
      name: `${P}request_success_total`,
      help: 'Requests that were finished, by what ended them.',
      labelNames: ['model_name', 'dp_rank', 'finished_reason'],
      registers: [this.#registry],
      collect: () => {
        counter.reset()
        this.#eachRank((labels, counts) => {
          for (const reason of ['stop', 'length']) {
            counter.inc({ ...labels, finished_reason: reason }, counts.finished[reason]!)
          }
        })
      },
    })
  }
}

const escapeLabel = (value: string): string => value.replace(/\\/g, '\\\\').replace(/"/g, '\\"').replace(/\n/g, '\\n')
