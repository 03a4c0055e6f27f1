// Entry of a rank's worker thread: builds the rank, drives its loop to the end, reports how it ended.
// The loop never returns to the event loop, so commands are read with receiveMessageOnPort.
import { setPriority } from 'node:os'
import { type MessagePort, parentPort, receiveMessageOnPort, workerData } from 'node:worker_threads'
import { ExpertBufferError } from '../comm/index.js'
import { type ErrorFields, SwitchyardError } from '../config/errors.js'
import { systemClock } from '../runtime/clock.js'
import { drive, spinPolicy } from '../runtime/wait.js'
import type { RankCommand, RankFailure, RankLaunch, RankPort } from './launch.js'
import { Rank } from './rank.js'

const { launch, commands } = workerData as { launch: RankLaunch; commands: MessagePort }

const port: RankPort = {
  receive: () => receiveMessageOnPort(commands)?.message as RankCommand | undefined,
  send: report => parentPort!.postMessage(report),
}

/** Fields as data that a port can carry, whatever they held. */
const plainFields = (fields: ErrorFields): ErrorFields => JSON.parse(JSON.stringify(fields)) as ErrorFields

/** Milliseconds since the epoch, so that the main thread's clock and this one agree. */
const clock = { now: () => performance.timeOrigin + systemClock.now() }

/** The machine's monotonic clock, which all threads share; cheaper to read than hrtime. */
const monotonic = Number(process.hrtime.bigint()) / 1e6 - performance.now()
const traceClock = { now: () => monotonic + performance.now() }

function failureOf(error: unknown): RankFailure {
  const e = error instanceof Error ? error : new Error(String(error))
  // Misuse of an expert buffer is a rank's mistake: what counts is which rank and where, and that the main thread adds.
  const misuse = e instanceof ExpertBufferError
  const known = e instanceof SwitchyardError && !misuse
  return {
    code: known ? e.code : 'SY_RANK_FAILED',
    message: misuse ? `${e.code}: ${e.message}` : e.message,
    remedy: known ? e.remedy : 'This is a bug: please report it.',
    fields: known ? plainFields(e.fields) : {},
    stack: e.stack ?? '',
  }
}

/**
 * The main thread answers clients and watches ranks; where it has no core of its own, ranks yield to it. On Linux the
 * priority is this thread's alone; elsewhere it would be the process's, so it stays as it is.
 */
function yieldToMainThread(): void {
  if (process.platform !== 'linux' || launch.sizes.tp < launch.cores) return
  try {
    setPriority(0, YIELDING)
  } catch {
    // Not allowed here: only slower answers follow.
  }
}

const YIELDING = 5

yieldToMainThread()
try {
  const rank = new Rank(launch, port, clock, traceClock)
  const id = launch.coordinates.rank
  const { kernels, runner } = rank.context
  port.send({ kind: 'ready', kernels, queue: runner.queue ?? null })
  drive(
    rank.run(),
    spinPolicy(launch.sizes.tp, launch.cores),
    () => rank.context.control.throwIfAborted(id),
    wait => rank.context.status.waitingFor(wait?.peer ?? -1),
  )
  rank.context.runner.close()
  rank.context.status.phase('stopped')
  port.send({ kind: 'stopped' })
} catch (error) {
  // The status words stay as they are: they say where it happened.
  port.send({ kind: 'failed', error: failureOf(error) })
}
commands.close()
