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

/** "kvBytesPerToken" → "kv bytes per token" */
const words = (key: string): string =>
  key
    .replace(/([a-z\d])([A-Z])/g, '$1 $2')
    .replaceAll('_', ' ')
    .toLowerCase()

function scalar(key: string, value: unknown): string {
  if (value === null || value === undefined) return '–'
  if (typeof value === 'number') {
    if (/bytes/i.test(key)) return `${bytes(value)} (${whole(value)})`
    return Number.isInteger(value)
      ? /(id|seed|port)$/i.test(key)
        ? String(value)
        : whole(value)
      : String(Number(value.toPrecision(6)))
  }
  if (typeof value === 'boolean') return value ? 'yes' : 'no'
  return String(value)
}

const isObject = (value: unknown): value is Readonly<Record<string, unknown>> =>
  typeof value === 'object' && value !== null && !Array.isArray(value)

/** Any plain data as readable text. Strings of several lines are printed as they are. */
export function readable(data: Readonly<Record<string, unknown>>, indent = ''): string {
  const entries = Object.entries(data).filter(([, value]) => value !== undefined)
  const short = entries.filter(([, value]) => !isObject(value) && !Array.isArray(value) && !isBlock(value))
  const label = Math.max(0, ...short.map(([key]) => words(key).length))
  let text = ''
  for (const [key, value] of entries) {
    const name = words(key)
    if (isBlock(value)) text += `${indent}${name}\n${String(value).replace(/^/gm, `${indent}  `).trimEnd()}\n`
    else if (Array.isArray(value)) text += list(key, name, value, indent, label)
    else if (isObject(value)) {
      if (Object.keys(value).length > 0) text += `${indent}${name}\n${readable(value, `${indent}  `)}`
    } else text += `${indent}${name.padEnd(label)}  ${scalar(key, value)}\n`
  }
  return text
}

const isBlock = (value: unknown): boolean => typeof value === 'string' && value.includes('\n')

function list(key: string, name: string, items: readonly unknown[], indent: string, label: number): string {
  if (items.length > 0 && items.every(isObject)) {
    const rows = items as readonly Readonly<Record<string, unknown>>[]
    const keys = [...new Set(rows.flatMap(row => Object.keys(row)))]
    const cells = rows.map(row =>
      keys.map(k => scalar(k, isObject(row[k]) || Array.isArray(row[k]) ? JSON.stringify(row[k]) : row[k])),
    )
    return `${indent}${name}\n${table(keys.map(words), cells, `${indent}  `)}`
  }
  const text =
    items.length === 0
      ? '–'
      : items.map(item => scalar(key, typeof item === 'object' ? JSON.stringify(item) : item)).join(', ')
  return `${indent}${name.padEnd(label)}  ${text}\n`
}

/** The data itself under --json (one document, nothing else on stdout), else the text. */
export function printReport(io: CliIo, json: boolean, data: unknown, text: () => string): void {
  io.out(json ? `${JSON.stringify(data, bigintsAsText, 2)}\n` : text())
}

const bigintsAsText = (_key: string, value: unknown): unknown => (typeof value === 'bigint' ? value.toString() : value)
