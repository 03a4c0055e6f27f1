// What a command may touch of the process: where it prints, whether that is a terminal, its environment. Passed in, so that
// commands run in tests as they run for users. stdout carries results only; everything else goes to stderr.
import pc from 'picocolors'

export interface CliIo {
  /** Results. */
  out(text: string): void
  /** Progress, notices, errors. */
  err(text: string): void
  readonly errIsTerminal: boolean
  readonly outIsTerminal: boolean
  /** Width of the terminal in columns. */
  readonly columns: number
  readonly env: Readonly<Record<string, string | undefined>>
  /** Calls back at Ctrl-C or SIGTERM; returns how to stop listening. */
  onSignal(callback: (signal: NodeJS.Signals) => void): () => void
}

/** Under npm one Ctrl-C arrives twice, from the terminal and from npm: signals this close together are one. */
const SAME_SIGNAL_MS = 300

export function processIo(): CliIo {
  // A reader that closes the pipe (head, less) ends the program quietly.
  process.stdout.on('error', (error: NodeJS.ErrnoException) => {
    if (error.code === 'EPIPE') process.exit(0)
  })
  return {
    out: text => void process.stdout.write(text),
    err: text => void process.stderr.write(text),
    errIsTerminal: process.stderr.isTTY === true,
    outIsTerminal: process.stdout.isTTY === true,
    columns: Math.max(40, process.stdout.columns ?? process.stderr.columns ?? 100),
    env: process.env,
    onSignal(callback) {
      const signals = ['SIGINT', 'SIGTERM'] as const
      let last = -Infinity
      const once = (signal: NodeJS.Signals) => {
        const now = performance.now()
        if (now - last >= SAME_SIGNAL_MS) callback(signal)
        last = now
      }
      for (const signal of signals) process.on(signal, once)
      return () => {
        for (const signal of signals) process.off(signal, once)
      }
    },
  }
}

/** NO_COLOR (any value) wins, then FORCE_COLOR, then whether the target is a terminal. */
export function colors(io: CliIo, terminal: boolean) {
  const { NO_COLOR, FORCE_COLOR } = io.env
  if (NO_COLOR !== undefined && NO_COLOR !== '') return pc.createColors(false)
  if (FORCE_COLOR !== undefined && FORCE_COLOR !== '0') return pc.createColors(true)
  return pc.createColors(terminal && io.env['TERM'] !== 'dumb')
}
