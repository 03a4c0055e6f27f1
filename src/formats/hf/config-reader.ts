// Reads fields of a config.json and remembers which it was asked for, so that no field is ever ignored by accident:
// `finish` refuses by name every field that nobody read, unless its value says "nothing" (null, false, 0, "", [], {}).
// Invariant: every value returned has been checked for type and range. It knows no architecture.
import { describeJson, isJsonObject, type JsonObject } from '../json-file.js'
import { ModelConfigError } from './model-config-errors.js'

export interface Range {
  readonly min: number
  readonly max: number
}

/** Values that say "nothing here" whatever the field means. */
export function saysNothing(value: unknown): boolean {
  if (value === null || value === undefined || value === false || value === 0 || value === '') return true
  if (Array.isArray(value)) return value.length === 0
  return isJsonObject(value) && Object.keys(value).length === 0
}

export class ConfigReader {
  readonly file: string
  readonly #raw: JsonObject
  readonly #prefix: string
  readonly #known = new Set<string>()

  /** `prefix` names an object inside the file: `rope_parameters.`. */
  constructor(file: string, raw: JsonObject, prefix = '') {
    this.file = file
    this.#raw = raw
    this.#prefix = prefix
  }

  /** Whole number. Several names are spellings of one field; those present must agree. null counts as absent. */
  int(names: string | readonly string[], range: Range, fallback?: number): number {
    return this.#number(names, range, fallback, true)
  }

  number(names: string | readonly string[], range: Range, fallback?: number): number {
    return this.#number(names, range, fallback, false)
  }

  /** As `int`, where null is a value of its own. */
  nullableInt(names: string | readonly string[], range: Range, fallback: number | null): number | null {
    const { value } = this.#find(names)
    if (value === undefined) return fallback
    return value === null ? null : this.int(names, range)
  }

  nullableNumber(names: string | readonly string[], range: Range, fallback: number | null): number | null {
    const { value } = this.#find(names)
    if (value === undefined) return fallback
    return value === null ? null : this.number(names, range)
  }

  /** null reads as false, as it does in Python. */
  bool(names: string | readonly string[], fallback: boolean): boolean {
    const { name, value } = this.#find(names)
    if (value === undefined) return fallback
    if (value === null) return false
    return typeof value === 'boolean' ? value : this.refuse(name, 'true or false', value)
  }

  string(names: string | readonly string[], fallback: string | null): string | null {
    const { name, value } = this.#find(names)
    if (value === undefined || value === null) return fallback
    return typeof value === 'string' ? value : this.refuse(name, 'text', value)
  }

  object(names: string | readonly string[]): JsonObject | null {
    const { name, value } = this.#find(names)
    if (value === undefined || value === null) return null
    return isJsonObject(value) ? value : this.refuse(name, 'an object', value)
  }

  ints(name: string, range: Range): readonly number[] | null {
    const { value } = this.#find(name)
    if (value === undefined || value === null) return null
    if (!Array.isArray(value)) return this.refuse(name, 'a list of whole numbers', value)
    for (const item of value)
      if (!Number.isSafeInteger(item) || item < range.min || item > range.max)
        return this.refuse(name, `whole numbers from ${range.min} to ${range.max}`, item)
    return value as number[]
  }

  /** One of `allowed` for each layer, or null. */
  layerList(name: string, layers: number, allowed: readonly string[]): readonly string[] | null {
    const { value } = this.#find(name)
    if (value === undefined || value === null) return null
    if (!Array.isArray(value) || value.length !== layers)
      return this.refuse(name, `a list of ${layers}, one entry a layer`, value)
    for (const item of value)
      if (!allowed.includes(item)) return this.refuse(name, `entries of ${allowed.join(', ')}`, item)
    return value as string[]
  }

  /** A number or a list of numbers, as eos_token_id; negative ids mean "none" and are dropped. */
  tokenIds(name: string): readonly number[] {
    const { value } = this.#find(name)
    if (value === undefined || value === null) return []
    const list: unknown[] = Array.isArray(value) ? value : [value]
    for (const id of list) if (!Number.isSafeInteger(id)) return this.refuse(name, 'a token id or a list of them', id)
    return (list as number[]).filter(id => id >= 0)
  }

  /** A field that may only say what this architecture does anyway. Absent and null pass. */
  fixed(name: string, allowed: readonly unknown[], reason: string): void {
    const { value } = this.#find(name)
    if (value !== undefined && value !== null && !allowed.includes(value)) this.unsupported(name, value, reason)
  }

  /** Marks fields as known to have no effect. */
  inert(...names: string[]): void {
    for (const name of names) this.#known.add(name)
  }

  /** True when the field is there and not null. Does not count as reading it. */
  has(name: string): boolean {
    return Object.hasOwn(this.#raw, name) && this.#raw[name] !== null
  }

  /** The value as it stands in the file. Does not count as reading it. */
  peek(name: string): unknown {
    return Object.hasOwn(this.#raw, name) ? this.#raw[name] : undefined
  }

  refuse(name: string, expected: string, found: unknown): never {
    throw new ModelConfigError('SY_MODEL_CONFIG_FIELD', {
      file: this.file,
      field: this.#prefix + name,
      expected,
      found: describeJson(found),
      override: this.#override([name]),
    })
  }

  unsupported(name: string, found: unknown, reason: string): never {
    throw new ModelConfigError('SY_MODEL_CONFIG_UNSUPPORTED', {
      file: this.file,
      field: this.#prefix + name,
      found: describeJson(found),
      reason,
      override: this.#override([name]),
    })
  }

  /** Call when everything has been read. @throws ModelConfigError naming the fields that nobody read. */
  finish(architecture: string): void {
    const unknown = Object.keys(this.#raw).filter(name => !this.#known.has(name) && !saysNothing(this.#raw[name]))
    if (unknown.length === 0) return
    const shown = unknown
      .slice(0, 10)
      .map(name => `${this.#prefix}${name.slice(0, 80)} = ${describeJson(this.#raw[name])}`)
    throw new ModelConfigError('SY_MODEL_CONFIG_UNKNOWN', {
      file: this.file,
      architecture,
      count: unknown.length,
      fields: `${shown.join('; ')}${unknown.length > shown.length ? '; …' : ''}`,
      names: unknown.map(name => this.#prefix + name),
      override: this.#override(unknown.slice(0, 10)),
    })
  }

  #override(names: readonly string[]): string {
    const top = this.#prefix === '' ? names : [this.#prefix.slice(0, -1)]
    return `--json-model-override-args '${JSON.stringify(Object.fromEntries(top.map(name => [name.slice(0, 80), null])))}'`
  }

  #find(names: string | readonly string[]): { name: string; value: unknown } {
    const spellings = typeof names === 'string' ? [names] : names
    let name = spellings[0]!
    let value: unknown
    for (const spelling of spellings) {
      this.#known.add(spelling)
      if (!Object.hasOwn(this.#raw, spelling)) continue
      const candidate = this.#raw[spelling]
      if (value !== undefined && value !== null && candidate !== null && candidate !== value)
        this.refuse(spelling, `the same value as ${this.#prefix}${name} (${describeJson(value)})`, candidate)
      if (value === undefined || value === null) {
        name = spelling
        value = candidate
      }
    }
    return { name, value }
  }

  #number(names: string | readonly string[], range: Range, fallback: number | undefined, whole: boolean): number {
    const { name, value } = this.#find(names)
    if ((value === undefined || value === null) && fallback !== undefined) return fallback
    const fits =
      typeof value === 'number' &&
      (whole ? Number.isSafeInteger(value) : Number.isFinite(value)) &&
      value >= range.min &&
      value <= range.max
    if (fits) return value
    return this.refuse(name, `a ${whole ? 'whole ' : ''}number from ${range.min} to ${range.max}`, value)
  }
}
