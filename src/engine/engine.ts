// The engine: owns the node's memory and its ranks, and carries requests to them and tokens back.
// It lives in the main thread and never computes; a step of it is a message of a rank turned into events of requests.
import { randomBytes } from 'node:crypto'
import { availableParallelism } from 'node:os'
import type { EngineFlags } from '../config/flags.js'
import type { Tokenizer } from '../formats/tokenizer/index.js'
import { ControlBlock } from '../runtime/control.js'
import { RankError } from '../runtime/errors.js'
import { DpRouter, type RequestProgress } from '../scheduler/index.js'
import { checkRequest, checkTokens, type RequestLimits, toLogitsRequest, toRankRequest } from './check-request.js'
import { EncodeAside } from './encode-aside.js'
import { EngineError, RequestError } from './errors.js'
import type { RankCommand, RankReport } from './launch.js'
import { launchesOf } from './launches.js'
import { LiveRequest } from './live-request.js'
import { type EngineHooks, type ModelPlan, openTokenizer, planModel } from './load-model.js'
import { LogitsCollector } from './logits-collector.js'
import type { NodeDevice } from './node-device.js'
import { openDevice } from './open-device.js'
import { closeLater, openDeviceUntil } from './open-devices.js'
import { RankHost } from './rank-host.js'
import { lendersOf, loadRankPlaces } from './rank-places.js'
import {
  type DpRankState,
  freshState,
  type GenerationEngine,
  type GenerationEvent,
  type OpenRequest,
  withDefaults,
} from './request.js'
import type { RequestLogprobs } from './step-logprobs.js'
import { EngineTrace } from './trace.js'

/** Milliseconds that a close waits for kernels of ranks that failed. */
const IDLE_MS = 2000

export class Engine implements GenerationEngine {
  readonly plan: ModelPlan
  readonly flags: EngineFlags
  readonly tokenizer: Tokenizer | null
  readonly failure: Promise<Error>
  readonly #device: NodeDevice
  readonly #facts: Readonly<Record<string, unknown>>
  readonly #limits: RequestLimits
  readonly #live = new Map<string, LiveRequest>()
  readonly #logits = new Map<string, LogitsCollector>()
  readonly #states: DpRankState[]
  readonly #seed: bigint
  readonly #router: DpRouter
  readonly #aside: EncodeAside
  readonly #flushing: { readonly dpRank: number; resolve(pages: number): void; reject(error: Error): void }[] = []
  #host!: RankHost
  #trace: EngineTrace | null = null
  #counter = 0
  #paused = false
  #closing: Promise<void> | null = null
  #failed: Error | null = null
  #settleFailure!: (error: Error) => void
  #idle: (() => void) | null = null
  /** The process may end as usual again. */
  #closed: () => void = () => {}

  private constructor(
    plan: ModelPlan,
    flags: EngineFlags,
    tokenizer: Tokenizer | null,
    device: NodeDevice,
    facts: Record<string, unknown>,
  ) {
    this.plan = plan
    this.#device = device
    this.flags = flags
    this.tokenizer = tokenizer
    this.#facts = facts
    this.failure = new Promise(resolve => {
      this.#settleFailure = resolve
    })
    const { kvSlots, contextLength } = plan.limits
    const dpRanks = plan.topology.sizes.attnDp
    const { vocabSize, eosTokenIds } = plan.spec
    this.#limits = { contextLength, poolTokens: kvSlots, vocabSize, dpRanks, eosTokenIds }
    this.#states = Array.from({ length: dpRanks }, (_, dpRank) => freshState(dpRank, kvSlots))
    this.#router = new DpRouter(flags.loadBalanceMethod, dpRanks, flags.pageSize)
    this.#aside = new EncodeAside(plan.directory)
    this.#seed = flags.randomSeed === null ? randomBytes(8).readBigUInt64LE() : BigInt(flags.randomSeed)
  }

  /**
   * Loads the model and starts its ranks.
   * @throws SwitchyardError before any rank starts when something is wrong; RankError when a rank does not get ready
   */
  static async start(flags: EngineFlags, hooks: EngineHooks = {}): Promise<Engine> {
    const device = openDevice(flags)
    const closed = openDeviceUntil(device)
    try {
      const engine = await Engine.#startOn(device, flags, hooks)
      engine.#closed = closed
      return engine
    } catch (error) {
      // A thread that cannot be ended may still use the device.
      if (!(error instanceof RankError && error.code === 'SY_RANK_STUCK')) {
        closeQuietly(device)
        closed()
      }
      throw error
    }
  }

  static async #startOn(device: NodeDevice, flags: EngineFlags, hooks: EngineHooks): Promise<Engine> {
    if (device.warning !== null) hooks.onNotice?.(device.warning)
    const plan = planModel(flags, device, hooks.plan)
    for (const note of plan.parallel.notes) hooks.onNotice?.(note)
    const tokenizer = openTokenizer(plan)
    const places = await loadRankPlaces(plan, flags, device, hooks)
    const control = ControlBlock.create(plan.topology.ranks.length)
    const { launches, kvBytes } = launchesOf(plan, flags, places, control, availableParallelism(), hooks.traceRecords)
    const lentBytes = lendersOf(places).reduce((sum, { lender }) => sum + lender.lent, 0)
    const facts = { kernels: device.name, weightBytes: plan.weightBytes, kvBytes, lentBytes }
    const engine = new Engine(plan, flags, tokenizer, device, facts)
    engine.#trace = EngineTrace.of(plan, launches)
    const names = (rank: number, program: number, operation: number) => {
      const op = plan.programs[rank]?.[program]?.program.operations[operation]
      return op ? `${op.kind}: ${op.label}` : 'unknown'
    }
    engine.#host = new RankHost(
      control,
      { report: (rank, report) => engine.#onReport(rank, report), failed: error => engine.#onFailure(error) },
      names,
      { stallMs: flags.watchdogTimeout * 1000, waitMs: (flags.distTimeout ?? flags.watchdogTimeout) * 1000 },
    )
    try {
      await engine.#host.start(launches)
    } catch (error) {
      await engine.#host.stop(0)
      throw error
    }
    return engine
  }

  get modelName(): string {
    return this.plan.name
  }

  get contextLength(): number {
    return Math.min(this.#limits.contextLength, this.#limits.poolTokens)
  }

  get vocabSize(): number {
    return this.#limits.vocabSize
  }

  encodeAside(text: string, options: { readonly addSpecialTokens: boolean }): Promise<number[]> {
    return this.#aside.encode(text, options)
  }

  /** @throws RequestError, EngineError */
  generate(open: OpenRequest): AsyncIterable<GenerationEvent> {
    this.#refuseWhenGone()
    const request = withDefaults(open)
    checkRequest(request, this.#limits)
    const id = request.id ?? `req-${this.#counter}`
    if (this.#live.has(id)) throw new RequestError('SY_REQUEST_DUPLICATE_ID', { id })
    const seed = request.sampling.seed ?? this.#seed + BigInt(this.#counter)
    this.#counter++
    const dpRank = this.#router.pick(request.inputIds, request.routedDpRank)
    const live = new LiveRequest(id, dpRank, request, this.tokenizer, () => this.#abort(id))
    this.#live.set(id, live)
    if (request.signal?.aborted) {
      live.cancel()
      this.#forget(live)
    } else {
      this.#send(dpRank, { kind: 'request', request: toRankRequest(id, request, seed, this.#limits.eosTokenIds) })
    }
    return live.events
  }

  /** Logits [ids.length, vocab] of every position of a prompt. */
  async logits(ids: readonly number[]): Promise<Float32Array> {
    this.#refuseWhenGone()
    if (ids.length === 0) throw new RequestError('SY_REQUEST_EMPTY')
    checkTokens(ids, this.vocabSize)
    if (ids.length > this.contextLength) {
      const fields = { contextLength: this.contextLength, promptTokens: ids.length, maxTokens: 0 }
      throw new RequestError('SY_REQUEST_TOO_LONG', fields)
    }
    const id = `logits-${this.#counter++}`
    const collector = new LogitsCollector(ids.length, this.vocabSize)
    this.#logits.set(id, collector)
    this.#send(0, { kind: 'request', request: toLogitsRequest(id, ids) })
    return collector.rows
  }

  /** Ends a request early, as its signal would. @returns whether it was running */
  abort(id: string): boolean {
    const known = this.#live.has(id)
    this.#abort(id)
    return known
  }

  /** Ends all requests early. @returns how many there were */
  abortAll(): number {
    const ids = [...this.#live.keys()]
    for (const id of ids) this.#abort(id)
    return ids.length
  }

  /** Whether somebody asked for it to stand still. */
  get paused(): boolean {
    return this.#paused
  }

  /** Running requests stand still until `resume`; new ones queue. */
  pause(): void {
    this.#paused = true
    this.#sendAll({ kind: 'pause' })
  }

  resume(): void {
    this.#paused = false
    this.#sendAll({ kind: 'continue' })
  }

  /** Forgets cached prefixes that no request uses. @returns pages freed over all attention-DP ranks */
  async flushCache(): Promise<number> {
    this.#refuseWhenGone()
    const counts = this.#states.map(
      (_, dpRank) => new Promise<number>((resolve, reject) => this.#flushing.push({ dpRank, resolve, reject })),
    )
    this.#sendAll({ kind: 'flush_cache' })
    return (await Promise.all(counts)).reduce((a, b) => a + b, 0)
  }

  state(): readonly DpRankState[] {
    return this.#states
  }

  info(): Readonly<Record<string, unknown>> {
    const { spec, dtype, limits, generation, topology } = this.plan
    return {
      ...this.flags,
      model_name: this.modelName,
      architecture: spec.architecture,
      dtype: dtype === 'f32' ? 'float32' : 'bfloat16',
      context_length: this.contextLength,
      max_total_num_tokens: limits.kvSlots,
      vocab_size: spec.vocabSize,
      parallel: topology.sizes,
      generation_defaults: generation,
      ...this.#facts,
    }
  }

  /**
   * Begins a trace: resolves when every rank records, so that what is asked of the engine from then on is in it whole.
   * @throws EngineError when the engine is closing or has failed
   */
  async startTrace(): Promise<void> {
    this.#trace?.start()
    // Ranks that sleep look at the switch when they wake.
    this.#host.wake()
    while (this.#trace?.recording === false) {
      this.#refuseWhenGone()
      await new Promise(resolve => setTimeout(resolve, 1))
    }
  }

  /** What the ranks do, step by step; null unless the engine was started with `traceRecords`. */
  get trace(): EngineTrace | null {
    return this.#trace
  }

  /** For drills: the host of this engine's ranks. */
  get host(): RankHost {
    return this.#host
  }

  #refuseWhenGone(): void {
    if (this.#failed) throw this.#failed
    if (this.#closing) throw new EngineError('SY_ENGINE_CLOSING')
  }

  #sendAll(command: RankCommand): void {
    for (const { dpRank } of this.#states) this.#send(dpRank, command)
  }

  /** To the rank that schedules for an attention-DP rank. */
  #send(dpRank: number, command: RankCommand): void {
    const { tp, attnDp } = this.plan.topology.sizes
    this.#host.send(dpRank * (tp / attnDp), command)
  }

  #onReport(rank: number, report: RankReport): void {
    if (report.kind === 'flushed') {
      const { attnDp } = this.plan.topology.ranks[rank]!
      const waiting = this.#flushing.findIndex(f => f.dpRank === attnDp)
      if (waiting >= 0) this.#flushing.splice(waiting, 1)[0]!.resolve(report.pages)
    }
    if (report.kind !== 'step') return
    const { attnDp } = this.plan.topology.ranks[rank]!
    this.#states[attnDp] = report.state
    this.#router.reported(attnDp, report.state.attentionPairs)
    const logprobs = new Map(report.logprobs?.map(found => [found.id, found]))
    for (const progress of report.progress) this.#onProgress(progress, report.logits, logprobs.get(progress.id))
  }

  #onProgress(progress: RequestProgress, logits: Float32Array | null, logprobs: RequestLogprobs | undefined): void {
    const live = this.#live.get(progress.id)
    if (live) {
      if (progress.token !== null) this.#router.drew(live.dpRank, 1)
      const stillRuns = live.advance(progress, logprobs)
      if (stillRuns) this.#send(live.dpRank, { kind: 'abort', id: live.id })
      if (live.ended) this.#forget(live)
    } else if (logits && this.#logits.get(progress.id)?.add(progress, logits)) {
      this.#logits.delete(progress.id)
      this.#noteIdle()
    }
  }

  #forget(live: LiveRequest): void {
    this.#router.finished(live.dpRank, live.tokens)
    this.#live.delete(live.id)
    this.#noteIdle()
  }

  #abort(id: string): void {
    const live = this.#live.get(id)
    if (!live) return
    this.#send(live.dpRank, { kind: 'abort', id })
    live.cancel()
    this.#forget(live)
  }

  #onFailure(error: Error): void {
    this.#failed = error
    for (const live of this.#live.values()) live.fail(error)
    for (const waiting of [...this.#logits.values(), ...this.#flushing.splice(0)]) waiting.reject(error)
    this.#live.clear()
    this.#logits.clear()
    this.#noteIdle()
    this.#settleFailure(error)
  }

  #noteIdle(): void {
    if (this.#live.size === 0 && this.#logits.size === 0) this.#idle?.()
  }

  close(limitMs = 0): Promise<void> {
    this.#closing ??= this.#shutDown(limitMs)
    return this.#closing
  }

  async #shutDown(limitMs: number): Promise<void> {
    if ((this.#live.size > 0 || this.#logits.size > 0) && limitMs > 0) {
      let timer: NodeJS.Timeout | undefined
      await new Promise<void>(resolve => {
        this.#idle = resolve
        timer = setTimeout(resolve, limitMs)
      })
      clearTimeout(timer)
    }
    for (const id of [...this.#live.keys()]) this.#abort(id)
    const gone = new EngineError('SY_ENGINE_CLOSING')
    for (const waiting of [...this.#logits.values(), ...this.#flushing.splice(0)]) waiting.reject(gone)
    await this.#aside.close()
    await this.#host.stop(5000)
    const isBusy = () => this.#host.queues.some(queue => this.#device.isBusy?.(queue))
    for (const end = performance.now() + IDLE_MS; isBusy(); ) {
      if (performance.now() > end) {
        return closeLater(isBusy, () => {
          closeQuietly(this.#device)
          this.#closed()
        })
      }
      await new Promise(resolve => setTimeout(resolve, 10))
    }
    if (this.#failed) closeQuietly(this.#device)
    else this.#device.close()
    this.#closed()
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close()
  }
}

/** After a failure: a device that went wrong may refuse this too, and the failure is what counts. */
function closeQuietly(device: NodeDevice): void {
  try {
    device.close()
  } catch {
    // Its memory is given back when the process ends.
  }
}
