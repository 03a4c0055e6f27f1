// What a model asks of its checkpoint: a list of weights, each with the pieces of source tensors that make it up.
// A shard of a layout is the same list with other rows, columns and experts, so the loader knows nothing of layouts.
import type { MemorySpan } from '../device/memory.js'
import type { PackedMatrix, ParameterVector } from '../device/ops.js'

/** Output rows taken from one source tensor, in order. */
export interface WeightPiece {
  /** Name in the checkpoint. */
  readonly tensor: string
  /** Full shape the checkpoint must have: [n, k], [n], or [experts, a, b]. Checked before anything is read. */
  readonly shape: readonly number[]
  /** Index along the first axis of a 3-D tensor. */
  readonly slice?: number
  /** Output rows: first index, how many, and the distance between them (2 reads interleaved gate/up rows). */
  readonly rows: { readonly from: number; readonly count: number; readonly step?: number }
  /** Inputs (k): all of them unless given. */
  readonly columns?: { readonly from: number; readonly count: number }
  /** The source holds [k, n]: rows above count along its last axis. */
  readonly transposed?: boolean
}

/** `count` packed matrices of [n, k]; `pieces[i]` are stacked along n to make matrix i. */
export interface MatrixSpec {
  readonly form: 'matrix'
  readonly name: string
  readonly n: number
  readonly k: number
  /** `model`: the run's --dtype. `f32`: always f32 (routers). */
  readonly precision: 'model' | 'f32'
  readonly pieces: readonly (readonly WeightPiece[])[]
}

/** f32 parameters, the pieces one after another. */
export interface VectorSpec {
  readonly form: 'vector'
  readonly name: string
  readonly length: number
  readonly pieces: readonly WeightPiece[]
}

export type WeightSpec = MatrixSpec | VectorSpec

/** Everything a model wants loaded, and which other tensors of the checkpoint it knows and leaves. */
export interface WeightPlan {
  readonly weights: readonly WeightSpec[]
  /** Tensors whose names match are skipped silently (next-token-prediction layers, rotary buffers). Others are refused. */
  readonly skip: (tensor: string) => boolean
}

/** Loaded weights by name; spans are lent by the node, so the whole object can be posted to rank workers. */
export interface LoadedWeights {
  readonly matrices: Readonly<Record<string, PackedMatrix>>
  readonly vectors: Readonly<Record<string, ParameterVector>>
  readonly spans: readonly MemorySpan[]
  readonly bytes: number
}
