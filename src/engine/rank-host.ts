// The main thread's side of ranks: starts their worker threads, carries commands and reports, watches that they move.
// Watchdog, timers and logs live here, because a busy or waiting worker runs none.
import { existsSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { MessageChannel, type MessagePort, Worker } from 'node:worker_threads'
import { type ErrorFields, SwitchyardError } from '../config/errors.js'
import { isContextLost } from '../device/cuda/errors.js'
import type { ControlBlock, RankStatus } from '../runtime/control.js'
import { RankError } from '../runtime/errors.js'
import { EngineError } from './errors.js'
import type { RankCommand, RankFailure, RankLaunch, RankReport } from './launch.js'
import { forgive, judge, type Movement, observe, type Verdict, type WatchLimits } from './watchdog.js'

/** The compiled worker; sources run from src/ (tests) use the one in dist/. */
function workerFile(): URL {
  const url = import.meta.url.endsWith('.ts')
    ? new URL('../../dist/engine/rank-worker.js', import.meta.url)
    : new URL('./rank-worker.js', import.meta.url)
  if (!existsSync(fileURLToPath(url))) throw new EngineError('SY_ENGINE_NOT_BUILT', { file: fileURLToPath(url) })
  return url
}

interface HostedRank {
  readonly worker: Worker
  readonly commands: MessagePort
  stopped: boolean
  /** On its device, from when it is ready until it has let go of it. */
  queue: number | null
  /** Resolves when its thread has ended, however. */
  readonly exited: Promise<void>
}

export interface RankHostEvents {
  report(rank: number, report: RankReport): void
  /** At most once: the engine cannot go on. */
  failed(error: Error): void
}

/** Names an operation of a rank's program, for messages. */
export type OperationNames = (rank: number, program: number, operation: number) => string

/** Ranks whose waiting a message tells, of maybe hundreds. */
const WAITERS_SHOWN = 4
/** Characters of a foreign error's text that a message takes over. */
const CAUSE_SHOWN = 500
/** Milliseconds in which a terminated thread ends, unless it is in native code that does not return. */
const TERMINATE_MS = 1000
/** Milliseconds in which a rank sees the abort word, unless it hangs. */
const ABORT_MS = 300
/**
 * Milliseconds until a rank that does not hang is terminated for not seeing it: native code may take long, and some of it ends the whole
 * process when its thread is being terminated while it returns.
 */
const NATIVE_MS = 5000
/** The same of a rank that starts: it loads libraries and compiles kernels, one after another. */
const STARTING_MS = 30_000

export class RankHost {
  readonly control: ControlBlock
  readonly #ranks: HostedRank[] = []
  readonly #events: RankHostEvents
  readonly #names: OperationNames
  readonly #limits: WatchLimits
  /** Rejects at the first failure; handled here, because nobody may be listening. */
  readonly #failure: Promise<never>
  #rejectFailure!: (error: Error) => void
  #watchdog: NodeJS.Timeout | undefined
  #failed: Error | null = null
  /** The rank that the watchdog gave up. */
  #hanging = -1
  #closing = false

  constructor(control: ControlBlock, events: RankHostEvents, names: OperationNames, limits: WatchLimits) {
    this.control = control
    this.#events = events
    this.#names = names
    this.#limits = limits
    this.#failure = new Promise((_, reject) => {
      this.#rejectFailure = reject
    })
    this.#failure.catch(() => {})
  }

  /** Starts one worker a launch; resolves when all are ready. */
  async start(launches: readonly RankLaunch[]): Promise<void> {
    const url = workerFile()
    const ready = launches.map((launch, rank) => this.#spawn(url, launch, rank))
    this.#watch()
    await Promise.race([Promise.all(ready), this.#failure])
  }

  #spawn(url: URL, launch: RankLaunch, rank: number): Promise<void> {
    const { port1, port2 } = new MessageChannel()
    const worker = new Worker(url, {
      workerData: { launch, commands: port2 },
      transferList: [port2],
      name: `rank ${rank}`,
      // A rank's heap holds plans and closures only; its data is lent memory. A small nursery keeps it flat from the start.
      resourceLimits: { maxOldGenerationSizeMb: 1024, maxYoungGenerationSizeMb: 8 },
    })
    const exited = new Promise<void>(resolve => worker.once('exit', () => resolve()))
    const hosted: HostedRank = { worker, commands: port1, stopped: false, queue: null, exited }
    this.#ranks[rank] = hosted
    return new Promise(resolve => {
      worker.on('message', (report: RankReport) => {
        if (report.kind === 'ready') {
          hosted.queue = report.queue
          resolve()
        } else if (report.kind === 'stopped') {
          hosted.stopped = true
          hosted.queue = null
        } else if (report.kind === 'failed') this.#fail(this.#failureOf(rank, report.error))
        else this.#events.report(rank, report)
      })
      worker.on('error', cause => this.#fail(this.#died(rank, shorten(cause.message))))
      worker.on('exit', code => {
        if (!hosted.stopped) this.#fail(this.#died(rank, `its thread ended with code ${code}`))
      })
    })
  }

  /** Queues of devices that ranks have not let go of, though they may have ended. */
  get queues(): readonly number[] {
    return this.#ranks.flatMap(({ queue }) => queue ?? [])
  }

  send(rank: number, command: RankCommand): void {
    this.#ranks[rank]?.commands.postMessage(command)
    // Every rank takes part in the next vote, so all of them must wake.
    this.wake()
  }

  /** Ranks that sleep begin another step. */
  wake(): void {
    for (let r = 0; r < this.#ranks.length; r++) this.control.ring(r)
  }

  /** For drills: ends a rank's thread wherever it is, as the system would. */
  async terminate(rank: number): Promise<void> {
    await this.#ranks[rank]?.worker.terminate()
  }

  /**
   * Stops the ranks between steps; those that do not within `limitMs` are terminated. Those of a failed engine end wherever they look
   * at the abort word.
   * @throws RankError SY_RANK_STUCK when a thread does not end even so
   */
  async stop(limitMs: number): Promise<void> {
    this.#closing = true
    clearInterval(this.#watchdog)
    const exits = Promise.all(this.#ranks.map(r => r.exited))
    if (this.#failed) this.control.abort()
    for (let rank = 0; rank < this.#ranks.length; rank++) this.send(rank, { kind: 'stop' })
    if (!this.#failed) await within(exits, limitMs)
    this.control.abort()
    await Promise.all(this.#ranks.map(({ exited }, rank) => within(exited, this.#patienceWith(rank))))
    const left = new Set(this.#ranks.keys())
    const ends = this.#ranks.map(async ({ worker, commands }, rank) => {
      commands.close()
      await worker.terminate()
      left.delete(rank)
    })
    await within(Promise.all(ends), TERMINATE_MS)
    if (left.size > 0) throw this.#stuck([...left])
  }

  /** Milliseconds that a rank has to end at the abort word. */
  #patienceWith(rank: number): number {
    if (!this.#failed || rank === this.#hanging) return ABORT_MS
    return this.control.status(rank).phase === 'starting' ? STARTING_MS : NATIVE_MS
  }

  #watch(): void {
    const limits = this.#limits
    const period = Math.max(20, Math.min(1000, Math.min(limits.stallMs, limits.waitMs) / 4))
    let seen: Movement[] = []
    let last = performance.now()
    this.#watchdog = setInterval(() => {
      const now = performance.now()
      if (now - last > 4 * period) seen = forgive(seen, now - last - period)
      last = now
      const statuses = this.#ranks.map((_, rank) => this.control.status(rank))
      seen = observe(statuses, seen, now)
      const verdict = judge(statuses, seen, limits, now)
      if (!verdict) return
      this.#hanging = verdict.rank
      this.#fail(this.#stalled(verdict))
    }, period)
    this.#watchdog.unref()
  }

  #stalled({ rank, waiting, forMs }: Verdict): RankError {
    const late = waiting.slice(0, WAITERS_SHOWN).map(r => `rank ${r} waits in ${this.#where(r)}`)
    if (waiting.length > WAITERS_SHOWN) late.push(`and ${waiting.length - WAITERS_SHOWN} more wait`)
    return new RankError('SY_RANK_STALLED', {
      ...this.#place(rank),
      seconds: (forMs / 1000).toFixed(1),
      waiting: late.length === 0 ? '' : ` (${late.join('; ')})`,
    })
  }

  /** Fields of errors that say what a rank is at, by its status words. */
  #place(rank: number): ErrorFields {
    const { step, layer, operation } = this.control.status(rank)
    return { rank, step, layer, operation, where: this.#where(rank) }
  }

  #where(rank: number, at: Partial<RankStatus> = {}): string {
    const { phase, layer, program, operation, waitingFor } = { ...this.control.status(rank), ...at }
    const place = operation < 0 ? `phase ${phase}` : `operation ${operation} (${this.#names(rank, program, operation)})`
    return `${layer < 0 ? '' : `layer ${layer}, `}${place}${waitingFor < 0 ? '' : `, waiting for rank ${waitingFor}`}`
  }

  /** Kernels run later than they are queued: an error says itself where it was, or else only where it was seen is known. */
  #deviceFailed(rank: number, { code, fields }: RankFailure): string {
    const said = (key: string): number | undefined => (typeof fields[key] === 'number' ? fields[key] : undefined)
    const status = this.control.status(rank)
    const step = said('step') ?? status.step
    const operation = said('operation')
    const inStep = step > 0 ? ` in step ${step}` : ''
    // A GPU that reaches another's memory fails with it, and may be the first to notice.
    const orOther =
      this.#ranks.length > 1 && isContextLost(Number(fields['number'])) ? ' (or in a kernel of another rank)' : ''
    if (operation !== undefined)
      return `rank ${rank} failed${inStep}, ${this.#where(rank, { operation, layer: said('layer') ?? -1, program: said('program') ?? 0, waitingFor: -1 })}`
    return `rank ${rank} failed${inStep}, ${code === 'SY_CUDA_CALL' ? 'seen in ' : ''}${this.#where(rank)}${orOther}`
  }

  #died(rank: number, how: string): RankError {
    return new RankError('SY_RANK_DIED', { ...this.#place(rank), how })
  }

  #stuck(ranks: readonly number[]): RankError {
    const place = this.#place(ranks[0]!)
    const first = this.#failed ? `; before that, ${this.#failed.message}` : ''
    return new RankError('SY_RANK_STUCK', { ...place, ranks, first }, { cause: this.#failed })
  }

  #failureOf(rank: number, failure: RankFailure): Error {
    if (failure.code === 'SY_RANK_FAILED') {
      const error = new RankError('SY_RANK_FAILED', { ...this.#place(rank), cause: shorten(failure.message) })
      error.stack = failure.stack
      return error
    }
    // A device's own words do not say where the rank was.
    if (failure.code.startsWith('SY_CUDA_')) {
      const place = { ...this.#place(rank), ...failure.fields }
      const message = `${this.#deviceFailed(rank, failure)}: ${failure.message}`
      return new SwitchyardError(
        failure.code,
        { status: 503, message, remedy: failure.remedy },
        { reportedBy: rank, ...place },
      )
    }
    const template = { status: 503, message: failure.message, remedy: failure.remedy }
    return new SwitchyardError(failure.code, template, { reportedBy: rank, ...failure.fields })
  }

  #fail(error: Error): void {
    if (this.#failed || this.#closing) return
    this.#failed = error
    clearInterval(this.#watchdog)
    this.control.abort()
    this.#rejectFailure(error)
    this.#events.failed(error)
  }
}

const shorten = (text: string): string => (text.length <= CAUSE_SHOWN ? text : `${text.slice(0, CAUSE_SHOWN)}…`)

/** Waits for `done`, at most `limitMs`. */
async function within(done: Promise<unknown>, limitMs: number): Promise<void> {
  let timer: NodeJS.Timeout | undefined
  const limit = new Promise<void>(resolve => {
    timer = setTimeout(resolve, limitMs)
  })
  await Promise.race([done, limit])
  clearTimeout(timer)
}
