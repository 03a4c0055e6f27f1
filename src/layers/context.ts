// What a layer needs to emit itself: the builder, the batch's inputs, and which shard of the weights this rank holds.
import type { MatrixSpec, VectorSpec, WeightPiece } from '../formats/weight-spec.js'
import type { DispatchMode, ProgramBuilder, Ref } from '../program/index.js'
import type { MoveContext } from './boundary/index.js'

/** Piece `index` of `count` pieces. */
export interface Shard {
  readonly index: number
  readonly count: number
}

export const WHOLE: Shard = { index: 0, count: 1 }

/** The piece of `total` that a shard holds; pieces differ by one at most. */
export function cut(total: number, shard: Shard): { readonly from: number; readonly count: number } {
  const base = Math.floor(total / shard.count)
  const longer = total % shard.count
  return {
    from: shard.index * base + Math.min(shard.index, longer),
    count: base + (shard.index < longer ? 1 : 0),
  }
}

/** The host-written inputs of a step, one row a token unless said otherwise. */
export interface BatchInputs {
  readonly ids: Ref
  /** Hash of a token's prefix: names the token wherever it is computed, and equal prefixes alike. */
  readonly requestKeys: Ref
  readonly positions: Ref
  readonly rowSequence: Ref
  readonly slots: Ref
  /** [sequences, max pages] */
  readonly pageTable: Ref
  readonly pageSize: number
  /** [logitRows] row of `tokens` each logit row is taken from. */
  readonly logitIndex: Ref
  /** [logitRows, 8] */
  readonly sampleParams: Ref
}

export interface LayerContext {
  readonly builder: ProgramBuilder
  readonly inputs: BatchInputs
  /** Index of the layer. */
  readonly layer: number
  readonly hidden: number
  /** Positions the rope tables cover. */
  readonly maxPositions: number
  /** Rows of this layer's KV buffer. */
  readonly kvSlots: number
  readonly moves: MoveContext
  readonly attnTp: Shard
  /** This rank among all ranks: dense layers and shared experts are cut over them. */
  readonly tp: Shard
  /** This rank's cut of every expert's intermediate width. */
  readonly moeTp: Shard
  /** Physical experts of a layer, and whether some logical expert has more than one. */
  readonly physicalExperts: number
  readonly replicated: boolean
  /** How tokens reach the experts of other ranks. */
  readonly dispatch: 'none' | DispatchMode
  /** Logical experts that this rank has weights of, in the order of its slots; null: all logical experts, in their order. */
  readonly ownExperts: ((layer: number) => readonly number[]) | null
}

/** Consecutive output rows of an [n, k] tensor. */
export const rowsOf = (
  tensor: string,
  shape: readonly [number, number],
  from = 0,
  count: number = shape[0],
): WeightPiece => ({
  tensor,
  shape,
  rows: { from, count },
})

/** Elements of a [n] tensor. */
export const elementsOf = (tensor: string, length: number, from = 0, count: number = length): WeightPiece => ({
  tensor,
  shape: [length],
  rows: { from, count },
})

/** One matrix stacked from pieces. */
export const stacked = (
  name: string,
  k: number,
  pieces: readonly WeightPiece[],
  precision: MatrixSpec['precision'] = 'model',
): Omit<MatrixSpec, 'form'> => ({
  name,
  n: pieces.reduce((sum, p) => sum + p.rows.count, 0),
  k,
  precision,
  pieces: [pieces],
})

/** One vector, the pieces one after another. */
export const joined = (name: string, pieces: readonly WeightPiece[]): Omit<VectorSpec, 'form'> => ({
  name,
  length: pieces.reduce((sum, p) => sum + p.rows.count, 0),
  pieces,
})
