// Where a piece's elements lie in its source tensor, as the strides that packers read by. Pure arithmetic.
import { Unreachable } from '../../config/errors.js'
import type { WeightPiece } from '../weight-spec.js'

/** Element [row][input] of the piece is element `offset + row * strideN + input * strideK` of the tensor. */
export interface Strides {
  readonly offset: number
  readonly strideN: number
  readonly strideK: number
  /** Inputs of each row; 1 for vectors. */
  readonly k: number
}

export function matrixStrides(piece: WeightPiece): Strides {
  const [first, second, base] = lastTwo(piece)
  const { rows, columns, transposed } = piece
  const step = rows.step ?? 1
  const [n, k] = transposed ? [second, first] : [first, second]
  const from = columns?.from ?? 0
  const count = columns?.count ?? k
  if (lastRow(piece) >= n || from < 0 || from + count > k) outside(piece)
  return transposed
    ? { offset: base + from * n + rows.from, strideN: step, strideK: n, k: count }
    : { offset: base + rows.from * k + from, strideN: step * k, strideK: 1, k: count }
}

export function vectorStrides(piece: WeightPiece): Strides {
  const { shape, slice, rows } = piece
  const n = shape.at(-1) ?? 0
  const sliced = slice !== undefined
  if (shape.length !== (sliced ? 2 : 1) || (sliced && slice >= shape[0]!) || lastRow(piece) >= n) outside(piece)
  return { offset: (slice ?? 0) * n + rows.from, strideN: rows.step ?? 1, strideK: 0, k: 1 }
}

const lastRow = ({ rows }: WeightPiece): number => rows.from + Math.max(0, rows.count - 1) * (rows.step ?? 1)

function lastTwo(piece: WeightPiece): [first: number, second: number, base: number] {
  const { shape, slice } = piece
  if (slice === undefined) {
    if (shape.length !== 2) outside(piece)
    return [shape[0]!, shape[1]!, 0]
  }
  if (shape.length !== 3 || slice < 0 || slice >= shape[0]!) outside(piece)
  return [shape[1]!, shape[2]!, slice * shape[1]! * shape[2]!]
}

function outside(piece: WeightPiece): never {
  throw new Unreachable(
    `a piece of ${piece.tensor} reaches outside [${piece.shape.join(', ')}]: ${JSON.stringify(piece)}`,
  )
}
