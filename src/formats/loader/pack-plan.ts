// Packs the weights of a plan into lent memory, whatever the elements come from (a checkpoint, or made-up numbers).
// Invariant: one span a weight, in the order of the plan, laid out as the device's packer wants it. Between weights the event
// loop runs, so that a progress bar moves and signals arrive.
import { Unreachable } from '../../config/errors.js'
import { f32View, type MemoryLender, type MemorySpan } from '../../device/memory.js'
import type { DrawnElements, PackedMatrix, Packer, PackSource, ParameterVector, WeightKind } from '../../device/ops.js'
import { CheckpointError } from '../safetensors/index.js'
import type { LoadedWeights, MatrixSpec, VectorSpec, WeightPiece, WeightPlan, WeightSpec } from '../weight-spec.js'

export interface PackOptions {
  readonly plan: WeightPlan
  /** Precision of weights marked `model`. */
  readonly dtype: WeightKind
  readonly packer: Packer
  readonly lender: MemoryLender
  /** Packed bytes done, and in all. */
  readonly onProgress?: (done: number, total: number) => void
}

/** Calls `use` with the elements of a piece, maybe in several runs of rows. Only packers that draw are given drawn ones, of matrices. */
export type PieceReader = (
  piece: WeightPiece,
  weight: WeightSpec,
  use: (firstRow: number, rows: number, source: PackSource | DrawnElements) => void,
) => void

const isDrawn = (source: PackSource | DrawnElements): source is DrawnElements => 'table' in source

const YIELD_BYTES = 8 * 1024 * 1024

const matrixKind = (weight: MatrixSpec, dtype: WeightKind): WeightKind => (weight.precision === 'f32' ? 'f32' : dtype)

export function packedBytesOf(weight: WeightSpec, dtype: WeightKind, packer: Packer): number {
  if (weight.form === 'vector') return weight.length * 4
  return packer.packedBytes(matrixKind(weight, dtype), weight.n, weight.k) * weight.pieces.length
}

export async function packPlan(options: PackOptions, read: PieceReader): Promise<LoadedWeights> {
  const { plan, dtype, packer, lender, onProgress } = options
  const total = plan.weights.reduce((sum, weight) => sum + packedBytesOf(weight, dtype, packer), 0)
  const matrices: Record<string, PackedMatrix> = {}
  const vectors: Record<string, ParameterVector> = {}
  const spans: MemorySpan[] = []
  let done = 0
  onProgress?.(0, total)
  for (const weight of plan.weights) {
    if (Object.hasOwn(matrices, weight.name) || Object.hasOwn(vectors, weight.name))
      throw new Unreachable(`two weights are named ${weight.name}`)
    const bytes = packedBytesOf(weight, dtype, packer)
    const span = lender.lend(bytes, weight.name)
    spans.push(span)
    if (weight.form === 'vector') vectors[weight.name] = packVector(weight, packer, span, read)
    else matrices[weight.name] = await packMatrices(weight, matrixKind(weight, dtype), packer, span, read)
    done += bytes
    onProgress?.(done, total)
    await eventLoopTurn()
  }
  return { matrices, vectors, spans, bytes: total }
}

/** Lets timers, signals and terminal writes run. */
const eventLoopTurn = (): Promise<void> => new Promise(resolve => setImmediate(resolve))

async function packMatrices(
  weight: MatrixSpec,
  kind: WeightKind,
  packer: Packer,
  span: MemorySpan,
  read: PieceReader,
): Promise<PackedMatrix> {
  const { n, k, pieces } = weight
  const strideBytes = packer.packedBytes(kind, n, k)
  const target: PackedMatrix = { kind, n, k, count: pieces.length, strideBytes, span }
  let sinceTurn = 0
  for (const [index, stack] of pieces.entries()) {
    let row = 0
    for (const piece of stack) {
      const rowStart = row
      read(piece, weight, (firstRow, rows, source) => {
        const first = rowStart + firstRow
        if (isDrawn(source)) packer.drawMatrix!(target, index, first, rows, source)
        else packer.packMatrix(target, index, first, rows, source)
      })
      row += piece.rows.count
    }
    if (row !== n) throw new Unreachable(`weight ${weight.name}: pieces make ${row} rows of ${n}`)
    sinceTurn += strideBytes
    if (sinceTurn >= YIELD_BYTES) {
      sinceTurn = 0
      await eventLoopTurn()
    }
  }
  return target
}

function packVector(weight: VectorSpec, packer: Packer, span: MemorySpan, read: PieceReader): ParameterVector {
  const target: ParameterVector = { length: weight.length, span }
  let at = 0
  for (const piece of weight.pieces) {
    const start = at
    read(piece, weight, (firstRow, rows, source) => {
      if (isDrawn(source)) throw new Unreachable(`vector ${weight.name} is not drawn`)
      packer.packVector(target, start + firstRow, rows, source)
    })
    at += piece.rows.count
  }
  if (at !== weight.length)
    throw new Unreachable(`weight ${weight.name}: pieces make ${at} of ${weight.length} elements`)
  // Norms and biases reach every token and the choice of experts: no number there is wrong without a sign of it.
  const values = packer.vectorValues?.(target) ?? f32View(span).subarray(0, weight.length)
  const bad = values.findIndex(value => !Number.isFinite(value))
  if (bad >= 0)
    throw new CheckpointError('SY_CHECKPOINT_NOT_FINITE', {
      weight: weight.name,
      tensor: weight.pieces[0]!.tensor,
      index: bad,
    })
  return target
}
