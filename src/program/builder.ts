// Builds a Program. Layers name their buffers and emit operations; the builder checks what can be checked at build
// time: every buffer exists, is written before it is read, and every reference lies inside its buffer.
import { Unreachable } from '../config/errors.js'
import type { MatrixSpec, VectorSpec, WeightSpec } from '../formats/weight-spec.js'
import { ExchangeRules } from './exchange-rules.js'
import {
  type Operation,
  type OperationArgs,
  type OperationKind,
  type ProgramGroup,
  type Ref,
  type RowSymbol,
  readsOf,
  writesOf,
} from './operation.js'
import type { BufferDtype, BufferSpec, Program, RopeTableSpec } from './program.js'

export interface EmitOptions {
  readonly rows?: RowSymbol
  readonly label: string
}

export class ProgramBuilder {
  readonly #buffers = new Map<string, BufferSpec>()
  readonly #written = new Set<string>()
  readonly #exchanges = new ExchangeRules()
  readonly #operations: Operation[] = []
  readonly #weights = new Map<string, WeightSpec>()
  readonly #ropeTables = new Map<string, RopeTableSpec>()
  #layer = -1
  #yieldNext = false

  /** Operations emitted from here on belong to this layer; -1 ends the last one. */
  layer(index: number): void {
    this.#layer = index
  }

  /** Marks a place where another batch may run. */
  yield(): void {
    this.#yieldNext = true
  }

  /** Declares a buffer, or returns the one of that name when it is declared the same way again. */
  buffer(spec: BufferSpec): Ref {
    const known = this.#buffers.get(spec.name)
    if (
      known &&
      (known.columns !== spec.columns ||
        known.rows !== spec.rows ||
        known.kind !== spec.kind ||
        known.dtype !== spec.dtype)
    ) {
      throw new Unreachable(`buffer ${spec.name} declared twice with different shapes`)
    }
    this.#buffers.set(spec.name, known ?? spec)
    if (spec.kind === 'input' || spec.kind === 'kv') this.#written.add(spec.name)
    return { buffer: spec.name, column: 0, width: spec.columns }
  }

  /** A scratch buffer of the arena, of the current layer: its own name there, so that layers share the memory. */
  arena(name: string, columns: number, rows: RowSymbol = 'tokens', dtype: BufferDtype = 'act'): Ref {
    const scoped = this.#layer < 0 ? name : `${this.#layer}.${name}`
    return this.buffer({ name: scoped, kind: 'arena', dtype, rows, columns })
  }

  /** A buffer whose rows go to the other members of a group: the next all_gather of the group must take it. Of the current layer. */
  exchange(name: string, columns: number, group: ProgramGroup): Ref {
    const scoped = this.#layer < 0 ? name : `${this.#layer}.${name}`
    return this.buffer({ name: scoped, kind: 'exchange', dtype: 'f32', rows: 'padded', columns, group })
  }

  matrix(spec: Omit<MatrixSpec, 'form'>): string {
    return this.#weight({ form: 'matrix', ...spec })
  }

  vector(spec: Omit<VectorSpec, 'form'>): string {
    return this.#weight({ form: 'vector', ...spec })
  }

  #weight(spec: WeightSpec): string {
    const known = this.#weights.get(spec.name)
    if (known && JSON.stringify(known) !== JSON.stringify(spec)) {
      throw new Unreachable(`weight ${spec.name} asked for twice in different forms`)
    }
    this.#weights.set(spec.name, spec)
    return spec.name
  }

  /** Layers with equal tables share one. */
  ropeTable(spec: Omit<RopeTableSpec, 'name'>): string {
    const key = JSON.stringify(spec)
    const known = this.#ropeTables.get(key)
    if (known) return known.name
    const name = `rope${this.#ropeTables.size}`
    this.#ropeTables.set(key, { name, ...spec })
    return name
  }

  emit<K extends OperationKind>(kind: K, args: OperationArgs[K], options: EmitOptions): void {
    const op = {
      kind,
      layer: this.#layer,
      rows: options.rows ?? 'tokens',
      args,
      label: options.label,
      yieldBefore: this.#yieldNext,
    } as unknown as Operation
    this.#yieldNext = false
    for (const ref of readsOf(op)) this.#check(op, ref, true)
    for (const ref of writesOf(op)) {
      this.#check(op, ref, false)
      this.#written.add(ref.buffer)
    }
    const published = this.#exchanges.emitted(op, this.#buffers)
    if (published !== null) this.#written.delete(published)
    this.#operations.push(op)
  }

  #check(op: Operation, ref: Ref, read: boolean): void {
    const spec = this.#buffers.get(ref.buffer)
    if (!spec) throw new Unreachable(`${op.kind} (${op.label}) names buffer ${ref.buffer}, which does not exist`)
    if (ref.column < 0 || ref.column + ref.width > spec.columns) {
      throw new Unreachable(`${op.kind} (${op.label}) reaches outside buffer ${ref.buffer}`)
    }
    if (read && !this.#written.has(ref.buffer)) {
      throw new Unreachable(`${op.kind} (${op.label}) reads ${ref.buffer} before anything wrote it`)
    }
  }

  get weights(): readonly WeightSpec[] {
    return [...this.#weights.values()]
  }

  build(name: string, bounds: Program['bounds']): Program {
    this.#exchanges.end()
    return Object.freeze({
      name,
      bounds: Object.freeze({ ...bounds }),
      buffers: Object.freeze([...this.#buffers.values()]),
      ropeTables: Object.freeze([...this.#ropeTables.values()]),
      operations: Object.freeze([...this.#operations]),
    })
  }
}

/** Columns [column, column + width) of a reference. */
export const columns = (ref: Ref, column: number, width: number): Ref => ({
  buffer: ref.buffer,
  column: ref.column + column,
  width,
})
