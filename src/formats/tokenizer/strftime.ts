// The date formats that chat templates ask for through strftime_now, in English and local time (as Python's C locale).

const DAYS = ['Sunday', 'Monday', 'Tuesday', 'Wednesday', 'Thursday', 'Friday', 'Saturday']
const MONTHS = [
  'January',
  'February',
  'March',
  'April',
  'May',
  'June',
  'July',
  'August',
  'September',
  'October',
  'November',
  'December',
]

const pad = (value: number, width = 2): string => String(value).padStart(width, '0')

const dayOfYear = (d: Date): number =>
  Math.round((Date.UTC(d.getFullYear(), d.getMonth(), d.getDate()) - Date.UTC(d.getFullYear(), 0, 1)) / 86_400_000) + 1

const DIRECTIVES: Readonly<Record<string, (d: Date) => string>> = {
  Y: d => String(d.getFullYear()),
  y: d => pad(d.getFullYear() % 100),
  m: d => pad(d.getMonth() + 1),
  d: d => pad(d.getDate()),
  e: d => String(d.getDate()).padStart(2, ' '),
  j: d => pad(dayOfYear(d), 3),
  B: d => MONTHS[d.getMonth()]!,
  b: d => MONTHS[d.getMonth()]!.slice(0, 3),
  A: d => DAYS[d.getDay()]!,
  a: d => DAYS[d.getDay()]!.slice(0, 3),
  H: d => pad(d.getHours()),
  I: d => pad(d.getHours() % 12 || 12),
  M: d => pad(d.getMinutes()),
  S: d => pad(d.getSeconds()),
  p: d => (d.getHours() < 12 ? 'AM' : 'PM'),
  F: d => strftime(d, '%Y-%m-%d'),
  T: d => strftime(d, '%H:%M:%S'),
  '%': () => '%',
}

/** Directives that are not listed stay as they are; `%-d` drops the padding. */
export function strftime(date: Date, format: string): string {
  return format.replace(/%(-?)([A-Za-z%])/g, (whole, bare: string, letter: string) => {
    const directive = Object.hasOwn(DIRECTIVES, letter) ? DIRECTIVES[letter] : undefined
    if (!directive) return whole
    const text = directive(date)
    return bare ? text.replace(/^[0 ]+(?=.)/, '') : text
  })
}
