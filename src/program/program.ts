// A forward pass as data: buffers and a flat list of operations, built once for a model, a layout and a mode.
import type { CountsSymbol, Operation, RowSymbol } from './operation.js'

/**
 * `arena`: shares one lent span with others whose lifetimes do not overlap. `input`: written by the host before a step.
 * `output`: read by the host after it. `kv`: a layer's cache. `node`: lent for good and addressable by peers, never in the arena.
 */
export type BufferKind = 'arena' | 'input' | 'output' | 'kv' | 'node'

/** [rows, columns] of 4-byte elements. */
export interface BufferSpec {
  readonly name: string
  readonly kind: BufferKind
  readonly dtype: 'f32' | 'i32'
  /** A symbol (its bound sizes the buffer) or a fixed number. */
  readonly rows: RowSymbol | number
  readonly columns: number
}

/** A table of cosines and sines that several operations share: f32 [positions, width]. */
export interface RopeTableSpec {
  readonly name: string
  readonly width: number
  readonly positions: number
  readonly inverseFrequencies: readonly number[]
  readonly attentionFactor: number
}

export interface Program {
  readonly name: string
  readonly bounds: Readonly<Record<RowSymbol, number>>
  readonly buffers: readonly BufferSpec[]
  readonly ropeTables: readonly RopeTableSpec[]
  readonly operations: readonly Operation[]
}

/** Rows a buffer must hold. */
export const boundedRows = (program: Pick<Program, 'bounds'>, buffer: BufferSpec): number =>
  typeof buffer.rows === 'number' ? buffer.rows : program.bounds[buffer.rows]

/** What the plan of a step binds: the value of every row symbol, and what each member of a group brings. */
export interface RowValues {
  readonly rows: Readonly<Record<RowSymbol, number>>
  readonly counts: Readonly<Record<CountsSymbol, readonly number[]>>
  /** Index of this rank in each list of counts. */
  readonly member: Readonly<Record<CountsSymbol, number>>
}
