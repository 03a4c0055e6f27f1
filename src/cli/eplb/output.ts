// Where reports go: JSON or text on stdout, HTML and SVG files, and one line on stderr for each file written.

import type { Progress as Told } from '../../eplb/index.js'
import { writeWhole } from '../../formats/expert-load/index.js'
import { standaloneSvg, type TerminalStyle } from '../draw/index.js'
import { type CliIo, colors } from '../io.js'
import { progressWriter } from '../progress.js'

/** @throws ExpertLoadError SY_LOAD_UNREADABLE */
function writeText(io: CliIo, file: string, text: string): void {
  writeWhole(file, text)
  io.err(`wrote ${file}
`)
}

export interface Pictures {
  readonly html: () => string
  /** The main chart at file width. */
  readonly svg: () => string
}

export function writePictures(
  io: CliIo,
  flags: { readonly html?: string; readonly svg?: string },
  pictures: Pictures,
): void {
  if (flags.html !== undefined) writeText(io, flags.html, pictures.html())
  if (flags.svg !== undefined) writeText(io, flags.svg, standaloneSvg(pictures.svg()))
}

/** Width of charts that are files of their own. */
export const SVG_WIDTH = 760

export function terminalStyle(io: CliIo): TerminalStyle {
  return { width: Math.min(io.columns, 160), color: colors(io, io.outIsTerminal).isColorSupported }
}

/** Runs `work` with a progress line on stderr that is gone afterwards. */
export function withProgress<T>(io: CliIo, work: (progress: Told) => T): T {
  const writer = progressWriter(io)
  const started = performance.now()
  try {
    return work((done, total, what) => {
      // Work that is over in a blink needs no line; a log wants lines only of what takes long.
      const patience = io.errIsTerminal ? 400 : 5000
      if (done < total && performance.now() - started > patience) {
        writer.update({ stage: `planning: ${what}`, done, total })
      }
    })
  } finally {
    writer.finish()
  }
}

export const clock = (): number => performance.now()

/** Balancedness and shares: four digits. */
export const four = (n: number): string => n.toFixed(4)
export const percent = (share: number): string => `${(100 * share).toFixed(1)}%`
export const milliseconds = (ms: number): string => (ms < 10 ? `${ms.toFixed(1)} ms` : `${Math.round(ms)} ms`)
/** Three digits, for counts of tokens. */
export const whole = (n: number): string => Math.round(n).toLocaleString('en-US')
