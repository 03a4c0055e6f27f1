// Reads a checkpoint directory for the oracle: config.json as it stands and F32 tensors in double precision. Its own few lines
// on purpose: a mistake of the product's readers must not reach the oracle.
import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'

export type Json = Record<string, unknown>

/** Rows of a matrix, or one row for a vector. */
export type Rows = readonly Float64Array[]

interface Entry {
  readonly dtype: string
  readonly shape: readonly number[]
  readonly data_offsets: readonly [number, number]
}

export class OracleCheckpoint {
  readonly config: Json
  readonly #entries = new Map<string, { readonly entry: Entry; readonly bytes: Buffer }>()

  constructor(directory: string) {
    this.config = JSON.parse(readFileSync(join(directory, 'config.json'), 'utf8')) as Json
    const index = join(directory, 'model.safetensors.index.json')
    const files = existsSync(index)
      ? new Set(Object.values((JSON.parse(readFileSync(index, 'utf8')) as { weight_map: Json }).weight_map as Json))
      : new Set(['model.safetensors'])
    for (const file of files) {
      const bytes = readFileSync(join(directory, String(file)))
      const body = 8 + Number(bytes.readBigUInt64LE(0))
      const header = JSON.parse(bytes.subarray(8, body).toString()) as Record<string, Entry>
      for (const [name, entry] of Object.entries(header)) {
        if (name !== '__metadata__') this.#entries.set(name, { entry, bytes: bytes.subarray(body) })
      }
    }
  }

  has(name: string): boolean {
    return this.#entries.has(name)
  }

  /** All elements in order. */
  flat(name: string): Float64Array {
    const found = this.#entries.get(name)
    if (!found) throw new Error(`the oracle misses tensor ${name}`)
    const { entry, bytes } = found
    if (entry.dtype !== 'F32') throw new Error(`the oracle reads F32, ${name} is ${entry.dtype}`)
    const [from, to] = entry.data_offsets
    return Float64Array.from({ length: (to - from) / 4 }, (_, i) => bytes.readFloatLE(from + 4 * i))
  }

  /** A matrix [n, k] as n rows; slice `at` of a [slices, n, k] tensor. */
  rows(name: string, at = 0): Rows {
    const { shape } = this.#entries.get(name)?.entry ?? { shape: [] }
    const flat = this.flat(name)
    const [n, k] = shape.slice(-2) as [number, number]
    return Array.from({ length: n }, (_, row) => flat.subarray((at * n + row) * k, (at * n + row + 1) * k))
  }

  // Fields of the config, by their names there.
  number(...names: string[]): number {
    for (const name of names) if (typeof this.config[name] === 'number') return this.config[name]
    throw new Error(`the oracle misses ${names.join(' or ')} in config.json`)
  }

  optional(name: string): number | null {
    const value = this.config[name]
    return typeof value === 'number' ? value : null
  }

  is(name: string): boolean {
    return this.config[name] === true
  }
}
