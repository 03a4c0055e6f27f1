// All ranks of an engine in one thread, in a seeded order: the same launches, ranks and collectives as with worker
// threads, without the threads. For tests that look for mistakes of ordering, and for debugging a step.
import type { EngineFlags } from '../config/flags.js'
import type { Clock } from '../runtime/clock.js'
import { ControlBlock } from '../runtime/control.js'
import { interleave } from '../runtime/interleave.js'
import type { RankRequest } from '../scheduler/index.js'
import type { Trace } from '../trace/index.js'
import type { RankCommand, RankReport } from './launch.js'
import { launchesOf } from './launches.js'
import { type ModelPlan, type PlanOptions, planModel } from './load-model.js'
import type { NodeDevice } from './node-device.js'
import { openDevice } from './open-device.js'
import { Rank } from './rank.js'
import { freshLenders, lendersOf, loadRankPlaces, type RankPlaces } from './rank-places.js'
import type { DpRankState } from './request.js'
import { EngineTrace } from './trace.js'

/** What one request came to. */
export interface OneThreadResult {
  readonly tokens: readonly number[]
  /** Log-probability of each token. */
  readonly logprobs: readonly number[]
  /** [prompt tokens, vocab] for requests that want logits, else empty. */
  readonly logits: Float32Array
}

/** A loaded model whose ranks can be run any number of times, each time with fresh caches. */
export class OneThreadEngine {
  readonly plan: ModelPlan
  readonly #flags: EngineFlags
  readonly #states = new Map<number, DpRankState>()
  readonly #device: NodeDevice
  readonly #places: RankPlaces
  #trace: Trace | null = null

  private constructor(plan: ModelPlan, flags: EngineFlags, device: NodeDevice, places: RankPlaces) {
    this.plan = plan
    this.#flags = flags
    this.#device = device
    this.#places = places
  }

  static async load(flags: EngineFlags, options: PlanOptions = {}): Promise<OneThreadEngine> {
    const device = openDevice(flags)
    const plan = planModel(flags, device, options)
    return new OneThreadEngine(plan, flags, device, await loadRankPlaces(plan, flags, device, {}))
  }

  /** What the ranks did in the last run, if it was traced. */
  get lastTrace(): Trace | null {
    return this.#trace
  }

  /** Counts of the last run, over all attention-DP ranks. */
  get lastCounters(): Pick<DpRankState, 'prefilledTokens' | 'cachedTokens' | 'retractions'> {
    const sum = (key: 'prefilledTokens' | 'cachedTokens' | 'retractions') =>
      [...this.#states.values()].reduce((n, s) => n + s[key], 0)
    return {
      prefilledTokens: sum('prefilledTokens'),
      cachedTokens: sum('cachedTokens'),
      retractions: sum('retractions'),
    }
  }

  /** Steps of the last run that had tokens, of the rank with most. */
  get lastSteps(): number {
    return Math.max(0, ...[...this.#states.values()].map(s => s.steps))
  }

  /** Steps of the last run in each dispatch mode; the same on all ranks. */
  get lastDispatchSteps(): DpRankState['dispatchSteps'] {
    return [...this.#states.values()][0]?.dispatchSteps ?? { none: 0, normal: 0, low_latency: 0 }
  }

  /** Lets go of the device. */
  close(): void {
    this.#device.close()
  }

  /**
   * Serves `requests` to their ends. `routes[i]` is the attention-DP rank of request i.
   * @param seed of the order in which ranks move; no result depends on it
   * @param tracing records what ranks do; see `lastTrace`
   */
  run(
    requests: readonly RankRequest[],
    routes: readonly number[],
    seed: number,
    tracing?: { readonly records: number; readonly clock: Clock },
  ): Map<string, OneThreadResult> {
    const plan = this.plan
    const places = freshLenders(this.#places)
    const { sizes, ranks } = plan.topology
    const control = ControlBlock.create(ranks.length)
    const { launches } = launchesOf(plan, this.#flags, places, control, 1, tracing?.records)
    const trace = EngineTrace.of(plan, launches)
    trace?.start()
    const vocab = this.plan.spec.vocabSize
    this.#states.clear()
    const results = new Map<string, { tokens: number[]; logprobs: number[]; logits: number[] }>()
    for (const { id } of requests) results.set(id, { tokens: [], logprobs: [], logits: [] })
    const collect = (report: RankReport) => {
      if (report.kind !== 'step') return
      this.#states.set(report.state.dpRank, report.state)
      for (const p of report.progress) {
        const result = results.get(p.id)!
        if (p.token !== null) {
          result.tokens.push(p.token)
          result.logprobs.push(p.logprob)
        }
        if (report.logits && p.token === null) {
          const rows = report.logits.subarray(p.logitRow * vocab, (p.logitRow + p.logitRows) * vocab)
          for (const value of rows) result.logits.push(value)
        }
      }
    }
    let now = 0
    const clock = { now: () => now++ }
    const bound = launches.map(launch => {
      const { attnDp, attnTp } = launch.coordinates
      const mine = attnTp === 0 ? requests.filter((_, i) => routes[i] === attnDp) : []
      const commands: RankCommand[] = [
        ...mine.map(request => ({ kind: 'request' as const, request })),
        { kind: 'stop' },
      ]
      return new Rank(launch, { receive: () => commands.shift(), send: collect }, clock, tracing?.clock ?? clock)
    })
    if (bound.length !== sizes.tp) throw new RangeError('one launch a rank')
    interleave(
      bound.map(rank => rank.run()),
      seed,
    )
    for (const rank of bound) rank.context.runner.close()
    for (const { device, lender } of lendersOf(places)) device.reclaim(lender)
    this.#trace = trace?.read() ?? null
    return new Map([...results].map(([id, r]) => [id, { ...r, logits: Float32Array.from(r.logits) }]))
  }
}
