// The main thread's side of ranks: starts their worker threads, carries commands and reports, watches that they move.
// Watchdog, timers and logs live here, because a busy or waiting worker runs none.
import { existsSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { MessageChannel, type MessagePort, Worker } from 'node:worker_threads'
import { SwitchyardError } from '../config/errors.js'
import type { ControlBlock } from '../runtime/control.js'
import { RankError } from '../runtime/errors.js'
import { EngineError } from './errors.js'
import type { RankCommand, RankLaunch, RankReport } from './launch.js'
import { judge, type Movement, observe, type Verdict, type WatchLimits } from './watchdog.js'

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
}

export interface RankHostEvents {
  report(rank: number, report: RankReport): void
  /** At most once: the engine cannot go on. */
  failed(error: Error): void
}

/** Names an operation of a rank's program, for messages. */
export type OperationNames = (rank: number, operation: number) => string

export class RankHost {
  readonly control: ControlBlock
  readonly #ranks: HostedRank[] = []
  readonly #events: RankHostEvents
  readonly #names: OperationNames
  readonly #limits: WatchLimits
  #watchdog: NodeJS.Timeout | undefined
  #failed = false
  #closing = false

  constructor(control: ControlBlock, events: RankHostEvents, names: OperationNames, limits: WatchLimits) {
    this.control = control
    this.#events = events
    this.#names = names
    this.#limits = limits
  }

  /** Starts one worker a launch; resolves when all are ready. */
  async start(launches: readonly RankLaunch[]): Promise<void> {
    const url = workerFile()
    await Promise.all(launches.map((launch, rank) => this.#spawn(url, launch, rank)))
    this.#watch()
  }

  #spawn(url: URL, launch: RankLaunch, rank: number): Promise<void> {
    const { port1, port2 } = new MessageChannel()
    const worker = new Worker(url, {
      workerData: { launch, commands: port2 },
      transferList: [port2],
      name: `rank ${rank}`,
      // A rank's heap holds plans and closures only; its data is lent memory.
      resourceLimits: { maxOldGenerationSizeMb: 1024 },
    })
    const hosted: HostedRank = { worker, commands: port1, stopped: false }
    this.#ranks[rank] = hosted
    return new Promise((resolve, reject) => {
      worker.on('message', (report: RankReport) => {
        if (report.kind === 'ready') resolve()
        else if (report.kind === 'stopped') hosted.stopped = true
        else if (report.kind === 'failed') {
          const error = this.#failureOf(rank, report.error)
          reject(error)
          this.#fail(error)
        } else this.#events.report(rank, report)
      })
      worker.on('error', cause => {
        const error = this.#died(rank, cause.message)
        reject(error)
        this.#fail(error)
      })
      worker.on('exit', code => {
        if (hosted.stopped || this.#closing) return
        const error = this.#died(rank, `its thread ended with code ${code}`)
        reject(error)
        this.#fail(error)
      })
    })
  }

  send(rank: number, command: RankCommand): void {
    this.#ranks[rank]?.commands.postMessage(command)
    // Every rank takes part in the next vote, so all of them must wake.
    for (let r = 0; r < this.#ranks.length; r++) this.control.ring(r)
  }

  /** Stops the ranks between steps; those that do not within `limitMs` are terminated. */
  async stop(limitMs: number): Promise<void> {
    this.#closing = true
    clearInterval(this.#watchdog)
    const exits = this.#ranks.map(r => new Promise<void>(resolve => r.worker.once('exit', () => resolve())))
    if (this.#failed) this.control.abort()
    for (let rank = 0; rank < this.#ranks.length; rank++) this.send(rank, { kind: 'stop' })
    let timer: NodeJS.Timeout | undefined
    const limit = new Promise<void>(resolve => {
      // Ranks of a failed engine end at the abort word, unless they are the ones that hang.
      timer = setTimeout(resolve, this.#failed ? Math.min(limitMs, 300) : limitMs)
    })
    await Promise.race([Promise.all(exits), limit])
    clearTimeout(timer)
    this.control.abort()
    for (const { worker, commands } of this.#ranks) {
      commands.close()
      await worker.terminate()
    }
  }

  #watch(): void {
    const limits = this.#limits
    const period = Math.max(20, Math.min(1000, Math.min(limits.stallMs, limits.waitMs) / 4))
    let seen: Movement[] = []
    this.#watchdog = setInterval(() => {
      const now = performance.now()
      const statuses = this.#ranks.map((_, rank) => this.control.status(rank))
      seen = observe(statuses, seen, now)
      const verdict = judge(statuses, seen, limits, now)
      if (verdict) this.#fail(this.#stalled(verdict))
    }, period)
    this.#watchdog.unref()
  }

  #stalled({ rank, waiting, forMs }: Verdict): RankError {
    const late = waiting.map(r => `rank ${r} waits in ${this.#where(r)}`).join('; ')
    return new RankError('SY_RANK_STALLED', {
      rank,
      seconds: (forMs / 1000).toFixed(1),
      step: this.control.status(rank).step,
      where: this.#where(rank),
      waiting: waiting.length === 0 ? '' : ` (${late})`,
    })
  }

  #where(rank: number): string {
    const { phase, layer, operation, waitingFor } = this.control.status(rank)
    const place = operation < 0 ? `phase ${phase}` : `operation ${operation} (${this.#names(rank, operation)})`
    return `${layer < 0 ? '' : `layer ${layer}, `}${place}${waitingFor < 0 ? '' : `, waiting for rank ${waitingFor}`}`
  }

  #died(rank: number, how: string): RankError {
    return new RankError('SY_RANK_DIED', { rank, how, step: this.control.status(rank).step, where: this.#where(rank) })
  }

  #failureOf(rank: number, failure: { code: string; message: string; remedy: string; stack: string }): Error {
    if (failure.code === 'SY_RANK_FAILED') {
      const step = this.control.status(rank).step
      const error = new RankError('SY_RANK_FAILED', { rank, step, where: this.#where(rank), cause: failure.message })
      error.stack = failure.stack
      return error
    }
    const template = { status: 503, message: failure.message, remedy: failure.remedy }
    return new SwitchyardError(failure.code, template, { rank })
  }

  #fail(error: Error): void {
    if (this.#failed || this.#closing) return
    this.#failed = true
    clearInterval(this.#watchdog)
    this.control.abort()
    this.#events.failed(error)
  }
}
