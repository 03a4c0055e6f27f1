// One rank: its context and its step loop. The loop is a Step: it yields whatever it waits for and never blocks itself,
// so the same code runs as a worker thread that owns a core or beside other ranks in one thread.
import { type Communicator, ShmCommunicator } from '../comm/index.js'
import { createCpuDevice } from '../device/cpu/index.js'
import { f32View, i32View } from '../device/memory.js'
import { PagePool } from '../kvcache/index.js'
import { type BoundOperation, bindProgram, runSequential } from '../program/index.js'
import type { Clock } from '../runtime/clock.js'
import { ControlBlock, type StatusWriter } from '../runtime/control.js'
import type { Step, Wait } from '../runtime/wait.js'
import { castVote, type LocalBatch, planStep, Scheduler, type StepPlan, VOTE_WORDS } from '../scheduler/index.js'
import { BatchWriter } from './batch-writer.js'
import type { RankLaunch, RankPort } from './launch.js'

const VOTE_TAG = { operation: -1, layer: -1, label: 'the vote of a step' }

export class Rank {
  readonly launch: RankLaunch
  readonly control: ControlBlock
  readonly status: StatusWriter
  readonly kernels: string
  readonly #port: RankPort
  readonly #clock: Clock
  readonly #world: Communicator
  readonly #pool: PagePool
  readonly #scheduler: Scheduler
  readonly #operations: readonly BoundOperation[]
  readonly #inputs: BatchWriter
  readonly #logits: Float32Array
  readonly #vocab: number
  readonly #sampled: Int32Array
  readonly #logprobs: Float32Array
  readonly #vote = new Int32Array(VOTE_WORDS)
  readonly #votes: Int32Array
  #stopping = false
  #previousPlanHash = 0

  constructor(launch: RankLaunch, port: RankPort, clock: Clock) {
    const { limits, buffers, program, weights, ropeTables } = launch
    const device = createCpuDevice({ kernels: launch.kernels })
    this.launch = launch
    this.kernels = device.name
    this.control = ControlBlock.attach(launch.control)
    this.status = this.control.statusWriter(launch.coordinates.rank)
    this.#port = port
    this.#clock = clock
    this.#world = new ShmCommunicator(this.control, launch.world, launch.coordinates.rank)
    this.#pool = new PagePool(Math.floor(limits.kvSlots / limits.pageSize), limits.pageSize)
    this.#scheduler = new Scheduler(this.#pool, {
      chunkedPrefillSize: launch.chunkedPrefillSize,
      maxRunningRequests: limits.sequences,
      logitRows: limits.sequences,
    })
    this.#operations = bindProgram({ ops: device.ops, program, weights, buffers, ropeTables })
    this.#inputs = new BatchWriter(buffers, limits)
    this.#logits = f32View(buffers['logits']!)
    this.#vocab = program.buffers.find(b => b.name === 'logits')!.columns
    this.#sampled = i32View(buffers['sampled']!)
    this.#logprobs = f32View(buffers['logprob']!)
    this.#votes = new Int32Array(launch.ranks * VOTE_WORDS)
  }

  /** The life of a rank, step by step, until everyone is asked to stop. */
  *run(): Step<void> {
    for (let step = 1; ; step++) {
      this.status.step(step)
      const doorbell = this.#drainMailbox()
      this.status.phase('forming')
      const batch = this.#scheduler.form(this.#clock.now())
      const plan = yield* this.#agree(step, batch)
      if (plan.stop) return
      if (plan.idle) {
        yield* this.#sleep(doorbell)
        continue
      }
      this.#inputs.write(batch)
      this.status.phase('forward')
      const rows = { tokens: batch.tokens, logitRows: batch.logitRows }
      yield* runSequential(this.#operations, rows, this.status)
      this.#commit(batch)
    }
  }

  /** Takes every command that has arrived. @returns the doorbell's value from before, to sleep on. */
  #drainMailbox(): number {
    const doorbell = Atomics.load(this.control.words, this.control.doorbellIndex(this.launch.coordinates.rank))
    for (let command = this.#port.receive(); command; command = this.#port.receive()) {
      if (command.kind === 'request') this.#scheduler.add(command.request)
      else if (command.kind === 'abort') this.#scheduler.abort(command.id)
      else this.#stopping = true
    }
    return doorbell
  }

  /** Vote → plan, the same on every rank. */
  *#agree(step: number, batch: LocalBatch): Step<StepPlan> {
    this.status.phase('voting')
    this.#world.beginStep(step)
    castVote(
      batch,
      {
        step,
        stopping: this.#stopping,
        configHash: this.launch.configHash,
        placementVersion: 0,
        generation: 0,
        previousPlanHash: this.#previousPlanHash,
      },
      this.#vote,
    )
    yield* this.#world.allGatherWords(VOTE_TAG, this.#vote, this.#votes)
    const plan = planStep(this.#votes, this.launch.dpRanks)
    this.#previousPlanHash = plan.hash
    return plan
  }

  /** Makes the step visible: tokens join their requests, pages of finished ones are free, the caller hears of it. */
  #commit(batch: LocalBatch): void {
    this.status.phase('committing')
    const progress = this.#scheduler.commit(batch, this.#sampled, this.#logprobs)
    const wanted = batch.slices.some(s => s.wantLogits)
    const logits = wanted ? this.#logits.slice(0, batch.logitRows * this.#vocab) : null
    this.#port.send({ kind: 'step', progress, logits, state: this.state() })
  }

  state() {
    return {
      dpRank: this.launch.coordinates.attnDp,
      running: this.#scheduler.runningCount,
      waiting: this.#scheduler.waitingCount,
      usedTokens: this.#pool.usedTokens,
      totalTokens: this.#pool.totalTokens,
      steps: this.#scheduler.steps,
    }
  }

  /** Until the doorbell rings. */
  *#sleep(seen: number): Step<void> {
    this.status.phase('idle')
    this.#port.send({ kind: 'step', progress: [], logits: null, state: this.state() })
    const { words } = this.control
    const index = this.control.doorbellIndex(this.launch.coordinates.rank)
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
