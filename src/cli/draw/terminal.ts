// Pictures for terminals: heat maps (256 colours, or shades of block characters without colour), bars, and small line
// charts. Pure text in, text out; whether colours are wanted is the caller's knowledge.

import { HEAT_LABELS, heatClass, heatRows } from './heat-scale.js'

/** Background colours (xterm 256) of the eight classes, cold to hot. */
const HEAT_COLORS = [25, 68, 152, 254, 223, 215, 208, 160] as const
/** Without colour: the fuller, the hotter. */
const HEAT_GLYPHS = [' ', '·', '-', '░', '▒', '▓', '█', '#'] as const

export interface TerminalStyle {
  /** Columns there are. */
  readonly width: number
  readonly color: boolean
}

const cell = (k: number, wide: number, color: boolean): string =>
  color ? `\x1b[48;5;${HEAT_COLORS[k]}m${' '.repeat(wide)}` : HEAT_GLYPHS[k]!.repeat(wide)
const reset = (color: boolean) => (color ? '\x1b[0m' : '')

/** [rows][columns] loads as a heat map with row numbers and a key. */
export function terminalHeatMap(rows: readonly (readonly number[])[], style: TerminalStyle, rowName: string): string {
  const label = Math.max(rowName.length, String(rows.length - 1).length)
  const room = Math.max(8, style.width - label - 2)
  const columns = rows[0]?.length ?? 0
  const wide = columns * 2 <= room ? 2 : 1
  let text = `${rowName.padStart(label)}\n`
  heatRows(rows, room).forEach((row, r) => {
    const cells =
      row === null ? ' no routed tokens' : row.map(ratio => cell(heatClass(ratio), wide, style.color)).join('')
    text += `${String(r).padStart(label)} ${row === null ? '' : style.color ? '' : '│'}${cells}${row === null ? '' : style.color ? reset(true) : '│'}\n`
  })
  const key = HEAT_LABELS.map((name, k) => `${cell(k, 2, style.color)}${reset(style.color)} ${name}`)
  const perLine = Math.max(1, Math.floor((style.width - label - 1) / 14))
  text += `${' '.repeat(label + 1)}load ÷ mean of its row:\n`
  for (let i = 0; i < key.length; i += perLine)
    text += `${' '.repeat(label + 1)}${key.slice(i, i + perLine).join('  ')}\n`
  return text
}

const EIGHTHS = ['', '▏', '▎', '▍', '▌', '▋', '▊', '▉'] as const

/** A bar of `value` of `most`, in eighths of a column. */
export function terminalBar(value: number, most: number, width: number): string {
  const eighths = Math.round((Math.max(0, Math.min(value, most)) / (most || 1)) * width * 8)
  return '█'.repeat(Math.floor(eighths / 8)) + EIGHTHS[eighths % 8]!
}

export interface TerminalLine {
  readonly name: string
  readonly values: readonly number[]
}

const LEVELS = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'] as const

/** Each series as one row of blocks over the same range, resampled to the width by means; ends with its range. */
export function terminalLines(series: readonly TerminalLine[], style: TerminalStyle, from: number, to: number): string {
  const label = Math.max(...series.map(s => s.name.length))
  const room = Math.max(10, Math.min(120, style.width - label - 3))
  return series
    .map(({ name, values }) => {
      const cells = Math.min(room, values.length)
      let row = ''
      for (let c = 0; c < cells; c++) {
        const first = Math.floor((c * values.length) / cells)
        const last = Math.max(first + 1, Math.floor(((c + 1) * values.length) / cells))
        const part = values.slice(first, last)
        const mean = part.reduce((a, b) => a + b, 0) / part.length
        const level = Math.round(((mean - from) / (to - from || 1)) * (LEVELS.length - 1))
        row += LEVELS[Math.max(0, Math.min(LEVELS.length - 1, level))]!
      }
      return `${name.padEnd(label)}  ${row}\n`
    })
    .join('')
}
