// The server's log: JSON lines on stderr, or short readable lines when stderr is a terminal. stdout stays free.
import { type Logger, pino } from 'pino'
import type { ServerFlags } from '../config/flags.js'

export type { Logger } from 'pino'

const LEVELS: Readonly<Record<number, string>> = { 20: 'debug', 30: 'info', 40: 'warn', 50: 'error', 60: 'fatal' }

export function createLogger(level: ServerFlags['logLevel'], stderr: NodeJS.WriteStream = process.stderr): Logger {
  const options = { level, base: null }
  if (!stderr.isTTY) return pino(options, pino.destination({ fd: 2, sync: true }))
  return pino(options, { write: (line: string) => stderr.write(readable(line)) })
}

/** `12:00:01 info POST /v1/completions status=200 ms=12` */
function readable(line: string): string {
  const { time, level, msg, ...fields } = JSON.parse(line) as Record<string, unknown>
  const clock = new Date(Number(time)).toTimeString().slice(0, 8)
  const parts = Object.entries(fields).map(([key, value]) =>
    typeof value === 'object' ? `${key}=${JSON.stringify(value)}` : `${key}=${String(value)}`,
  )
  const name = LEVELS[Number(level)] ?? String(level)
  return `${[clock, name, msg, ...parts].join(' ')}\n`
}
