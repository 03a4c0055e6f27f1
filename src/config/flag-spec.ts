// Flags as data: what a flag is called, what it may hold, what it means. One table serves the command line, the
// programmatic API, `--help` and the docs. This file holds the vocabulary and the one function that turns what was
// given (text or values) into checked values. The one flag it knows by name is `device`, on which defaults may depend.
import { ConfigError } from './config-errors.js'
import { closest } from './suggest.js'

interface FlagBase {
  /** Spelling on the command line, without dashes. SGLang's name wherever it has one. */
  readonly name: string
  /** Heading in --help. */
  readonly group: string
  readonly help: string
  /** Environment variable that supplies the value when the flag is absent. */
  readonly env?: string
  /** What an absent flag means, for --help, when `default` is null. */
  readonly defaultHelp?: string
  /** Values that are known by name and refused, with what to do instead. */
  readonly refused?: Readonly<Record<string, string>>
}

export type FlagSpec =
  | (FlagBase & {
      readonly type: 'string'
      readonly default: string | null
      /** What the text must look like, and the same in words. */
      readonly pattern?: RegExp
      readonly patternHelp?: string
    })
  | (FlagBase & { readonly type: 'boolean'; readonly default: boolean })
  | (FlagBase & { readonly type: 'choice'; readonly choices: readonly string[]; readonly default: string })
  | (FlagBase & {
      readonly type: 'integer' | 'number'
      readonly default: number | null
      readonly min: number
      readonly max: number
      /** `min` itself is not allowed. */
      readonly aboveMin?: boolean
      /** The default where `device` names GPUs. */
      readonly defaultOnGpu?: number
    })
  | (FlagBase & { readonly type: 'json'; readonly default: null })

export type FlagTable = Readonly<Record<string, FlagSpec>>

type ValueOf<F extends FlagSpec> =
  | (F extends { type: 'choice'; choices: readonly (infer C)[] }
      ? C
      : F extends { type: 'integer' | 'number' }
        ? number
        : F extends { type: 'boolean' }
          ? boolean
          : F extends { type: 'json' }
            ? Readonly<Record<string, unknown>>
            : string)
  | (F extends { default: null } ? null : never)

/** The checked values of a table: every key present, null where a flag is absent and has no default. */
export type FlagValues<T extends FlagTable> = { readonly [K in keyof T]: ValueOf<T[K]> }

/** What a caller may give: any subset; numbers and JSON also as text. Absent, undefined and null mean the default. */
export type FlagInput<T extends FlagTable> = { readonly [K in keyof T]?: ValueOf<T[K]> | string | null | undefined }

/** The words for what a flag takes, for messages and help: "an integer from 1 to 65535". */
export function expectation(flag: FlagSpec): string {
  switch (flag.type) {
    case 'choice':
      return flag.choices.length === 1 ? flag.choices[0]! : `one of ${flag.choices.join(', ')}`
    case 'boolean':
      return 'true or false'
    case 'json':
      return 'a JSON object'
    case 'string':
      return flag.patternHelp ?? 'some text'
    default: {
      const kind = flag.type === 'integer' ? 'an integer' : 'a number'
      const low = flag.aboveMin ? `above ${flag.min}` : `of at least ${flag.min}`
      if (flag.max === Number.MAX_SAFE_INTEGER) return `${kind} ${low}`
      return flag.aboveMin ? `${kind} ${low}, at most ${flag.max}` : `${kind} from ${flag.min} to ${flag.max}`
    }
  }
}

/**
 * Checks `given` against `table` and fills in defaults, those of GPUs where the table's `device` is one.
 * @param env environment, for flags that name a variable
 * @throws ConfigError naming the flag, the value and what is expected
 */
export function resolveFlags<T extends FlagTable>(
  table: T,
  given: FlagInput<T>,
  env: Readonly<Record<string, string | undefined>> = {},
): FlagValues<T> {
  for (const key of Object.keys(given)) {
    if (Object.hasOwn(table, key)) continue
    const near = closest(key, Object.keys(table))
    throw new ConfigError('SY_CONFIG_UNKNOWN_FLAG', { flag: key, suggestion: suggestion(near) })
  }
  const chosen: Record<string, unknown> = {}
  for (const [key, flag] of Object.entries(table)) {
    const own = (given as Readonly<Record<string, unknown>>)[key]
    const fromEnv = flag.env === undefined ? undefined : env[flag.env]
    if (own !== undefined && own !== null) chosen[key] = check(flag, `--${flag.name}`, own)
    else if (fromEnv !== undefined && fromEnv !== '') chosen[key] = check(flag, flag.env!, fromEnv)
  }
  const onGpu = String(chosen['device'] ?? table['device']?.default ?? '').startsWith('cuda')
  const values: Record<string, unknown> = {}
  for (const [key, flag] of Object.entries(table))
    values[key] = chosen[key] ?? (onGpu && 'defaultOnGpu' in flag ? flag.defaultOnGpu : flag.default)
  return Object.freeze(values) as FlagValues<T>
}

export const suggestion = (near: string | null, dashes = ''): string =>
  near === null ? 'see --help for the flags there are' : `did you mean ${dashes}${near}?`

function check(flag: FlagSpec, label: string, value: unknown): unknown {
  const refusal = typeof value === 'string' && flag.refused !== undefined ? flag.refused[value] : undefined
  if (refusal !== undefined) throw new ConfigError('SY_CONFIG_NOT_SUPPORTED', { flag: label, value, instead: refusal })
  const checked = parse(flag, value)
  if (checked !== undefined) return checked
  const near = flag.type === 'choice' && typeof value === 'string' ? closest(value, flag.choices) : null
  throw new ConfigError('SY_CONFIG_BAD_VALUE', {
    flag: label,
    value: shown(value),
    expected: expectation(flag),
    suggestion: near === null ? '' : `; did you mean ${near}?`,
  })
}

/** The value in its type, or undefined when it does not fit. */
function parse(flag: FlagSpec, value: unknown): unknown {
  switch (flag.type) {
    case 'string':
      return typeof value === 'string' && value !== '' && (flag.pattern?.test(value) ?? true) ? value : undefined
    case 'choice':
      return typeof value === 'string' && flag.choices.includes(value) ? value : undefined
    case 'boolean':
      return typeof value === 'boolean' ? value : value === 'true' ? true : value === 'false' ? false : undefined
    case 'json':
      return typeof value === 'string' ? parseObject(value) : isObject(value) ? value : undefined
    default: {
      const number =
        typeof value === 'string' && /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(value) ? Number(value) : value
      if (typeof number !== 'number' || !Number.isFinite(number)) return undefined
      if (flag.type === 'integer' && !Number.isSafeInteger(number)) return undefined
      if (number < flag.min || number > flag.max || (flag.aboveMin && number === flag.min)) return undefined
      return number
    }
  }
}

function parseObject(text: string): Readonly<Record<string, unknown>> | undefined {
  try {
    const value: unknown = JSON.parse(text)
    return isObject(value) ? value : undefined
  } catch {
    return undefined
  }
}

const isObject = (value: unknown): value is Readonly<Record<string, unknown>> =>
  typeof value === 'object' && value !== null && !Array.isArray(value)

function shown(value: unknown): string {
  const text = typeof value === 'string' ? JSON.stringify(value) : String(JSON.stringify(value) ?? value)
  return text.length > 80 ? `${text.slice(0, 77)}...` : text
}
