// A forward pass as data: buffers and a flat list of operations, built once for a model, a layout and a mode.
import type { CountsSymbol, Operation, ProgramGroup, RowSymbol } from './operation.js'

/**
 * `arena`: shares one lent span with others whose lifetimes do not overlap. `input`: written by the host before a step.
 * `output`: read by the host after it. `kv`: a layer's cache. `node`: lent for good and addressable by peers, never in the arena.
 * `exchange`: where the group's members look for this rank's next contribution: the all_gather that reads it copies nothing.
 */
export type BufferKind = 'arena' | 'input' | 'output' | 'kv' | 'node' | 'exchange'

/** `act`: activations, in the precision that the run computes in (f32 on the CPU; a GPU may take bf16). */
export type BufferDtype = 'f32' | 'i32' | 'act'

/** [rows, columns] of elements. */
export interface BufferSpec {
  readonly name: string
  readonly kind: BufferKind
  readonly dtype: BufferDtype
  /** A symbol (its bound sizes the buffer) or a fixed number. */
  readonly rows: RowSymbol | number
  readonly columns: number
  /** Of `exchange` buffers only. */
  readonly group?: ProgramGroup
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
