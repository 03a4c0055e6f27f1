// Progress on stderr: one redrawn line on a terminal, a few plain lines otherwise; at the end of a long stage, its bytes and seconds. Not their
// rate: bytes are counted as they are kept, and what moved may have been more, less (another precision) or nothing (dummy weights).
import { type CliIo, colors } from './io.js'
import { bytes } from './report.js'

export interface Progress {
  readonly stage: string
  readonly done: number
  readonly total: number
}

export interface ProgressWriter {
  update(progress: Progress): void
  /** Prints a line without tearing the bar. */
  notice(text: string): void
  /** Takes the bar away. */
  finish(): void
}

const BAR = 24
/** Milliseconds between redraws, and between plain lines of one stage. */
const REDRAW_MS = 50
const PLAIN_MS = 5000
/** A stage of at least so long gets a line with its bytes and seconds. */
const TOLD_MS = 1000

/** @param clock milliseconds */
export function progressWriter(io: CliIo, clock = () => performance.now()): ProgressWriter {
  const paint = colors(io, io.errIsTerminal)
  let drawn = false
  let last = -Infinity
  let stage = ''
  let began = clock()
  const clear = () => {
    if (drawn) io.err('\r\x1b[2K')
    drawn = false
  }
  const notice = (text: string) => {
    clear()
    io.err(`${text}\n`)
  }
  const draw = (progress: Progress, now: number) => {
    const newStage = progress.stage !== stage
    const wait = io.errIsTerminal ? REDRAW_MS : PLAIN_MS
    if (!newStage && now - last < wait && progress.done < progress.total) return
    if (!io.errIsTerminal) {
      if (newStage || now - last >= PLAIN_MS) io.err(`${progress.stage}${newStage ? '' : ` ${percent(progress)}`}\n`)
      if (newStage || now - last >= PLAIN_MS) last = now
      stage = progress.stage
      return
    }
    last = now
    stage = progress.stage
    const filled = Math.round(BAR * share(progress))
    const bar = paint.cyan('█'.repeat(filled)) + paint.dim('░'.repeat(BAR - filled))
    io.err(`\r\x1b[2K${progress.stage} ${bar} ${percent(progress)}`)
    drawn = true
  }
  return {
    update(progress) {
      const now = clock()
      if (progress.done === 0) began = now
      draw(progress, now)
      if (progress.total > 0 && progress.done >= progress.total && now - began >= TOLD_MS)
        notice(`${progress.stage}: ${bytes(progress.total)} in ${((now - began) / 1000).toFixed(1)} s`)
    },
    notice,
    finish: clear,
  }
}

const share = ({ done, total }: Progress): number => (total > 0 ? Math.min(1, Math.max(0, done / total)) : 0)
const percent = (progress: Progress): string => `${Math.floor(100 * share(progress))}%`
