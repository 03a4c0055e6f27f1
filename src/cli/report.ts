// Plain-data reports for people: nested objects as indented lines, lists of like objects as tables, sizes in words.
// The same data goes out unchanged under --json.
import type { CliIo } from './io.js'

/** Text width without colour codes. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: the escape character is what it looks for
const width = (text: string): number => text.replace(/\x1b\[[0-9;]*m/g, '').length

/** Rows of cells under a heading, numbers to the right. */
export function table(head: readonly string[], rows: readonly (readonly string[])[], indent = ''): string {
  const all = [head, ...rows]
  const widths = head.map((_, column) => Math.max(...all.map(row => width(row[column] ?? ''))))
  const numeric = head.map(
    (_, column) => rows.length > 0 && rows.every(row => /^[\d.,~%–-]*( ?\w{1,4})?(\/s)?$/.test(row[column] ?? '')),
  )
  const line = (row: readonly string[]): string =>
    `${indent}${row
      .map((cell, column) => {
        const pad = ' '.repeat(widths[column]! - width(cell))
        return numeric[column] ? pad + cell : cell + pad
      })
      .join('  ')
      .trimEnd()}\n`
  const rule = `${indent}${widths.map(w => '─'.repeat(w)).join('  ')}\n`
  return [line(head), rule, ...rows.map(line)].join('')
}

/** 1536 → "1.5 KiB" */
export function bytes(count: number): string {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB']
  let unit = 0
  while (count >= 1024 && unit < units.length - 1) {
    count /= 1024
    unit++
  }
  return `${unit === 0 ? count : count.toFixed(count < 10 ? 2 : 1)} ${units[unit]}`
}

/** 12345678 → "12,345,678" */
export const whole = (count: number): string => Math.round(count).toLocaleString('en-US')

/** "kvBytesPerToken" → "kv bytes per token"; names in capitals stay. */
const words = (key: string): string =>
  /^[A-Z\d_]+$/.test(key)
    ? key
    : key
        .replace(/([a-z\d])([A-Z])/g, '$1 $2')
        .replaceAll('_', ' ')
        .toLowerCase()

function scalar(key: string, value: unknown): string {
  if (value === null || value === undefined) return '–'
  if (typeof value === 'number') {
    if (/bytes/i.test(key)) return `${bytes(value)} (${whole(value)})`
    return Number.isInteger(value)
      ? /(ids?|seed|port)$/i.test(key)
        ? String(value)
        : whole(value)
      : String(Number(value.toPrecision(6)))
  }
  if (typeof value === 'boolean') return value ? 'yes' : 'no'
  return String(value)
}

const isObject = (value: unknown): value is Readonly<Record<string, unknown>> =>
  typeof value === 'object' && value !== null && !Array.isArray(value)

/**
 * Any plain data as readable text. Strings of several lines are printed as they are.
 * @param parent name that `data` has: inside "bytes by dtype" numbers are bytes
 */
export function readable(data: Readonly<Record<string, unknown>>, indent = '', parent = ''): string {
  const entries = Object.entries(data).filter(([, value]) => value !== undefined)
  const isShort = (value: unknown) => !isObject(value) && !isBlock(value) && !isTable(value)
  const label = Math.max(0, ...entries.flatMap(([key, value]) => (isShort(value) ? [words(key).length] : [])))
  let text = ''
  for (const [key, value] of entries) {
    const name = words(key)
    if (isBlock(value)) text += `${indent}${name}\n${String(value).replace(/^/gm, `${indent}  `).trimEnd()}\n`
    else if (isTable(value)) text += `${indent}${name}\n${objectTable(value, `${indent}  `)}`
    else if (isObject(value)) {
      if (Object.keys(value).length > 0) text += `${indent}${name}\n${readable(value, `${indent}  `, key)}`
    } else
      text += `${indent}${name.padEnd(label)}  ${Array.isArray(value) ? list(key, value) : scalar(`${parent} ${key}`, value)}\n`
  }
  return text
}

const isBlock = (value: unknown): boolean => typeof value === 'string' && value.includes('\n')

type Row = Readonly<Record<string, unknown>>

const isTable = (value: unknown): value is readonly Row[] =>
  Array.isArray(value) && value.length > 0 && value.every(isObject)

function objectTable(rows: readonly Row[], indent: string): string {
  const keys = [...new Set(rows.flatMap(row => Object.keys(row)))]
  const cells = rows.map(row =>
    keys.map(key => (Array.isArray(row[key]) ? list(key, row[key]) : scalar(key, flat(row[key])))),
  )
  return table(keys.map(words), cells, indent)
}

const list = (key: string, items: readonly unknown[]): string =>
  items.length === 0 ? '–' : items.map(item => scalar(key, flat(item))).join(', ')

const flat = (value: unknown): unknown => (typeof value === 'object' && value !== null ? JSON.stringify(value) : value)

/** The data itself under --json (one document, nothing else on stdout), else the text. */
export function printReport(io: CliIo, json: boolean, data: unknown, text: () => string): void {
  io.out(json ? `${JSON.stringify(data, bigintsAsText, 2)}\n` : text())
}

const bigintsAsText = (_key: string, value: unknown): unknown => (typeof value === 'bigint' ? value.toString() : value)
