// A CliIo that keeps what a command prints and lets a test send signals: for running commands in the test's process.
import type { CliIo } from '../src/cli/io.js'

export interface CapturedIo extends CliIo {
  readonly stdout: string
  readonly stderr: string
  signal(name?: NodeJS.Signals): void
}

export function captureIo(options: { env?: Record<string, string>; terminal?: boolean } = {}): CapturedIo {
  let stdout = ''
  let stderr = ''
  const listeners = new Set<(signal: NodeJS.Signals) => void>()
  return {
    get stdout() {
      return stdout
    },
    get stderr() {
      return stderr
    },
    out: text => {
      stdout += text
    },
    err: text => {
      stderr += text
    },
    outIsTerminal: options.terminal ?? false,
    errIsTerminal: options.terminal ?? false,
    columns: 100,
    env: options.env ?? {},
    onSignal(callback) {
      listeners.add(callback)
      return () => listeners.delete(callback)
    },
    signal: (name = 'SIGINT') => {
      for (const listener of [...listeners]) listener(name)
    },
  }
}
