// `switchyard serve DIR`: the OpenAI-compatible server. The socket is bound first, then the model is loaded, so a port in
// use is found at once. Ctrl-C drains, a second one aborts; a dead engine ends the process with 1.
import { constants } from 'node:os'
import { Command } from 'commander'
import { type EngineFlags, SERVER_FLAGS, type ServerFlags } from '../config/flags.js'
import type { GenerationEngine } from '../engine/index.js'
import type { RunningServer } from '../server/index.js'
import { engineModule, type StartEngine, startWithProgress } from './engine.js'
import { reportFailure } from './failure.js'
import { addEngineFlags, addFlags, takeEngineFlags, takeFlags } from './flag-options.js'
import { type CliIo, colors } from './io.js'
import { version } from './version.js'

export function serveCommand(io: CliIo, exit: (code: number) => void): Command {
  const command = addFlags(addEngineFlags(new Command('serve')), SERVER_FLAGS)
  return command
    .summary('serve a model over the OpenAI API')
    .description('Serves a model over the OpenAI API, with a page to try it at /.')
    .addHelpText(
      'after',
      `
Examples:
  switchyard serve models/demo
  switchyard serve ~/models/Qwen3-30B-A3B --port 8000 --context-length 8192
  curl http://127.0.0.1:30000/v1/completions -H 'Content-Type: application/json' \\
       -d '{"prompt": "Once upon a time", "max_tokens": 32}'`,
    )
    .action(async (dir: string | undefined, options: Readonly<Record<string, unknown>>) => {
      const flags = takeEngineFlags('serve', dir, options)
      const server = takeFlags(SERVER_FLAGS, options, io.env)
      exit(await runServer(io, flags, server, async (f, hooks) => (await engineModule()).startEngine(f, hooks)))
    })
}

type Ending = 'signal' | { readonly error: Error }

/** Milliseconds for which the server of a failed engine still answers. */
const FAILED_MS = 500

/** Serves until a signal or until the engine fails. @returns the exit code */
export async function runServer(
  io: CliIo,
  flags: EngineFlags,
  serverFlags: ServerFlags,
  start: StartEngine<GenerationEngine>,
): Promise<number> {
  const { createLogger, openServer } = await import('../server/index.js')
  const log = createLogger(serverFlags.logLevel)
  const server = await openServer(serverFlags, { log, version })
  const signals = new Signals(io)
  let engine: GenerationEngine | null = null
  try {
    const loading = startWithProgress(io, start, flags)
    // A signal while loading: nothing runs yet, so the process may simply end.
    const first = await Promise.race([loading, signals.reached(1)])
    if (first === null) {
      void loading.then(late => late.close(0)).catch(() => {})
      return signals.exitCode
    }
    engine = first
    server.attach(engine)
    announce(io, server, engine, serverFlags)
    const failed = engine.failure.then((error): Ending => ({ error }))
    const ending = await Promise.race([signals.reached(1).then((): Ending => 'signal'), failed])
    const last = ending === 'signal' ? await drain(io, server, engine, serverFlags, signals) : ending
    if (typeof last === 'number') return last
    reportFailure(last.error, io)
    // Who comes now hears 503 and why, and slow readers get their last bytes, while the ranks end.
    const moment = new Promise(resolve => setTimeout(resolve, FAILED_MS))
    await Promise.all([moment, server.drain(FAILED_MS), engine.close(0)])
    return 1
  } finally {
    signals.stop()
    await server.close()
    await engine?.close(0)
  }
}

async function drain(
  io: CliIo,
  server: RunningServer,
  engine: GenerationEngine,
  { shutdownTimeout }: ServerFlags,
  signals: Signals,
): Promise<number | Exclude<Ending, 'signal'>> {
  if (server.inFlight > 0) {
    const requests = server.inFlight === 1 ? '1 request' : `${server.inFlight} requests`
    io.err(`finishing ${requests}, for up to ${shutdownTimeout} s; Ctrl-C again to abort\n`)
  }
  // A failure ends the drain too, because it ends every request; the process must say so.
  const failures: Error[] = []
  void engine.failure.then(error => failures.push(error))
  const drained = server.drain(1000 * shutdownTimeout)
  const aborted = await Promise.race([drained, signals.reached(2)])
  for (const error of failures) return { error }
  if (aborted === null) {
    server.abort()
    await drained
    return signals.exitCode
  }
  if (aborted > 0) io.err(`aborted ${aborted} that were not finished in time\n`)
  await engine.close(0)
  return 0
}

/** Counts signals. */
class Signals {
  #count = 0
  #last: NodeJS.Signals = 'SIGINT'
  #waiting: { readonly count: number; readonly resolve: (value: null) => void }[] = []
  readonly stop: () => void

  constructor(io: CliIo) {
    this.stop = io.onSignal(signal => {
      this.#count++
      this.#last = signal
      for (const { count, resolve } of this.#waiting) if (count <= this.#count) resolve(null)
    })
  }

  /** What shells report of a process that the last signal ended: 130 after Ctrl-C, 143 after SIGTERM. */
  get exitCode(): number {
    return 128 + constants.signals[this.#last]
  }

  /** Resolves when `count` signals have come. */
  reached(count: number): Promise<null> {
    if (this.#count >= count) return Promise.resolve(null)
    return new Promise(resolve => this.#waiting.push({ count, resolve }))
  }
}

function announce(io: CliIo, server: RunningServer, engine: GenerationEngine, flags: ServerFlags): void {
  const paint = colors(io, io.outIsTerminal)
  io.out(
    `${paint.bold('Switchyard')} ${version} serves ${paint.bold(engine.modelName)}
  page    ${paint.cyan(`${server.url}/`)}
  API     ${server.url}/v1${flags.apiKey === null ? '' : ' (with the API key)'}
  health  ${server.url}/health
Ctrl-C stops it.
`,
  )
}
