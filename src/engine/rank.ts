// One rank's step loop. It is a Step: it yields whatever it waits for and never blocks itself, so the same code runs as
// a worker thread that owns a core or beside other ranks in one thread.
import type { Clock } from '../runtime/clock.js'
import type { Step, Wait } from '../runtime/wait.js'
import {
  castVote,
  IDLE_BATCH,
  type LocalBatch,
  PrefillDelayer,
  planStep,
  type StepPlan,
  stepRows,
  VOTE_WORDS,
} from '../scheduler/index.js'
import { traceWaits } from '../trace/index.js'
import type { RankLaunch, RankPort } from './launch.js'
import { buildRankContext, type RankContext } from './rank-context.js'
import type { DpRankState } from './request.js'
import { stepLogprobs } from './step-logprobs.js'
import { needsResults, type StepFlight } from './step-runner.js'
import { variantOf } from './variants.js'

const VOTE_TAG = { operation: -1, layer: -1, label: 'the vote of a step' }

export class Rank {
  readonly context: RankContext
  readonly #port: RankPort
  readonly #clock: Clock
  readonly #vote = new Int32Array(VOTE_WORDS)
  readonly #votes: Int32Array
  readonly #delayer: PrefillDelayer
  readonly #dispatchSteps = { none: 0, normal: 0, low_latency: 0 }
  /** The step on its way whose results are assumed: what the scheduler forms next follows it. */
  #flight: StepFlight | null = null
  #prefillable: readonly boolean[] = []
  #stopping = false
  #previousPlanHash = 0
  /** Milliseconds waited for other ranks' votes that belong to no step with tokens yet. */
  #carriedWait = 0
  #voteWait = 0

  /** @param traceClock of traces: finer than `clock` where it can be */
  constructor(launch: RankLaunch, port: RankPort, clock: Clock, traceClock: Clock = clock) {
    this.context = buildRankContext(launch, traceClock)
    this.#port = port
    this.#clock = clock
    this.#votes = new Int32Array(launch.sizes.tp * VOTE_WORDS)
    this.#delayer = new PrefillDelayer(launch.prefillDelayPasses)
  }

  /** The life of a rank, step by step, until everyone is asked to stop. */
  run(): Step<void> {
    const { trace } = this.context
    return trace ? traceWaits(this.#loop(), trace) : this.#loop()
  }

  *#loop(): Step<void> {
    const { status, leads, launch, runner, scheduler } = this.context
    for (let step = 1; ; step++) {
      status.step(step)
      const doorbell = this.#drainMailbox()
      status.phase('forming')
      const batch = leads ? yield* this.#form() : IDLE_BATCH
      const plan = yield* this.#agree(step, batch, doorbell)
      if (plan.idle) {
        yield* this.#settle()
        if (plan.stop) return
        yield* this.#sleep(plan.doorbell)
        continue
      }
      const variant = variantOf(launch.variants, plan)
      this.#dispatchSteps[plan.dispatch]++
      const values = stepRows(plan, launch.sizes, launch.coordinates)
      const flight = yield* runner.run({ batch, plan, variant, values })
      yield* this.#settle()
      if (launch.overlap && !needsResults(batch)) {
        scheduler.assume(batch)
        this.#flight = flight
      } else if (leads) {
        yield* this.#await(flight)
        this.#commit(flight, false)
      }
    }
  }

  *#form(): Step<LocalBatch> {
    const { scheduler } = this.context
    const { hasPrefill, hasDecode } = scheduler
    const mayPrefill = this.#delayer.mayPrefill(hasPrefill, hasDecode, this.#prefillable)
    if (this.#flight) {
      const batch = scheduler.formAhead(this.#clock.now(), mayPrefill)
      if (batch) return batch
      yield* this.#settle()
    }
    return scheduler.form(this.#clock.now(), mayPrefill)
  }

  /** Until what a step drew is there. */
  *#await({ finished }: StepFlight): Step<void> {
    if (finished.done) return
    this.context.status.phase('sampling')
    yield* finished.wait()
  }

  /** The results of the step on its way, if there is one, become known. */
  *#settle(): Step<void> {
    const flight = this.#flight
    if (!flight) return
    this.#flight = null
    yield* this.#await(flight)
    if (this.context.leads) this.#commit(flight, true)
  }

  /** Takes every command that has arrived. @returns rings heard before looking: a later one means that there is more. */
  #drainMailbox(): number {
    const { control, launch, scheduler } = this.context
    const doorbell = Atomics.load(control.words, control.doorbellIndex(launch.coordinates.rank))
    for (let command = this.#port.receive(); command; command = this.#port.receive()) {
      if (command.kind === 'request') scheduler.add(command.request)
      else if (command.kind === 'abort') scheduler.abort(command.id)
      else if (command.kind === 'pause' || command.kind === 'continue') scheduler.paused = command.kind === 'pause'
      else if (command.kind === 'flush_cache') this.#port.send({ kind: 'flushed', pages: scheduler.flushCache() })
      else this.#stopping = true
    }
    return doorbell
  }

  /** Vote → plan, the same on every rank. */
  *#agree(step: number, batch: LocalBatch, doorbell: number): Step<StepPlan> {
    const { groups, status, launch, drill } = this.context
    status.phase('voting')
    drill.beginStep(step)
    for (const group of Object.values(groups)) group.beginStep(step)
    this.context.expertBuffer?.beginStep(step)
    castVote(
      batch,
      {
        step,
        decodeGraph: this.context.runner.canReplay(batch),
        stopping: this.#stopping,
        prefillable: this.context.scheduler.hasPrefill,
        doorbell,
        configHash: launch.configHash ^ drill.wrongConfig,
        placementVersion: 0,
        generation: 0,
        previousPlanHash: this.#previousPlanHash ^ drill.wrongPlan,
      },
      this.#vote,
    )
    const before = this.#clock.now()
    yield* groups.tp.allGatherWords(VOTE_TAG, this.#vote, this.#votes)
    const plan = planStep(this.#votes, launch.sizes, { padding: launch.forcedPadding, dispatch: launch.dispatchRule })
    this.#carriedWait += this.#clock.now() - before
    if (!plan.idle) {
      this.#voteWait = this.#carriedWait
      this.#carriedWait = 0
    }
    this.#previousPlanHash = plan.hash
    this.#prefillable = plan.prefillable
    return plan
  }

  /** Makes the step visible: tokens join their requests, pages of finished ones are free, the caller hears of it. */
  #commit({ batch, outputs }: StepFlight, assumed: boolean): void {
    const { status, scheduler } = this.context
    status.phase('committing')
    const logprobs = stepLogprobs(batch, outputs)
    const progress = assumed
      ? scheduler.resolve(batch, outputs.sampled, outputs.logprobs)
      : scheduler.commit(batch, outputs.sampled, outputs.logprobs)
    const wanted = batch.slices.some(s => s.wantLogits && s.state.request.promptTopLogprobs === undefined)
    const logits = wanted ? outputs.logits.slice(0, batch.logitRows * outputs.vocab) : null
    this.#port.send({ kind: 'step', progress, logits, logprobs, state: this.#state(batch) })
  }

  #state(batch: LocalBatch): DpRankState {
    const { launch, scheduler, pool, runner } = this.context
    const counters = scheduler.counters
    return {
      dpRank: launch.coordinates.attnDp,
      running: scheduler.runningCount,
      waiting: scheduler.waitingCount,
      usedTokens: scheduler.usedTokens,
      totalTokens: pool.totalTokens,
      ...counters,
      dispatchSteps: { ...this.#dispatchSteps },
      voteWaitMs: this.#voteWait,
      attentionPairs: batch.attentionPairs,
      ...(runner.state ? { device: runner.state } : {}),
    }
  }

  /** Until the doorbell has rung more than `seen` times. */
  *#sleep(seen: number): Step<void> {
    const { status, control, launch, leads } = this.context
    status.phase('idle')
    if (leads)
      this.#port.send({ kind: 'step', progress: [], logits: null, logprobs: null, state: this.#state(IDLE_BATCH) })
    const { words } = control
    const index = control.doorbellIndex(launch.coordinates.rank)
    const wait: Wait = {
      words,
      index,
      peer: -1,
      ready: () => Atomics.load(words, index) !== seen,
      describe: () => 'waiting for requests',
    }
    while (!wait.ready()) yield wait
  }
}
