// Compares what a model wants with what a checkpoint holds, from the headers alone, before a byte of weights is read.
// Invariant: all problems are found at once. Known tensors are those of the plans, the block scales of known FP8 tensors, and
// what the plans skip; any other tensor is a problem, because ignoring it would run another model than the file's.
import type { SourceDtype } from '../../device/ops.js'
import { type Checkpoint, CheckpointError, showShape, type TensorInfo } from '../safetensors/index.js'
import type { WeightPiece, WeightPlan } from '../weight-spec.js'

const SHOWN = 10
export const SCALE_SUFFIX = '_scale_inv'

export type Fp8Block = readonly [rows: number, columns: number]

const SOURCE_DTYPES: readonly string[] = ['F32', 'F16', 'BF16', 'F8_E4M3'] satisfies SourceDtype[]

/** DeepSeek writes its block scales in F32, Qwen in BF16. */
const SCALE_DTYPES: readonly string[] = ['F32', 'BF16']

/** Every piece of every weight of a plan, with whether it goes into a matrix. */
export function* piecesOf(plan: WeightPlan): Generator<{ piece: WeightPiece; matrix: boolean }> {
  for (const weight of plan.weights) {
    if (weight.form === 'vector') for (const piece of weight.pieces) yield { piece, matrix: false }
    else for (const pieces of weight.pieces) for (const piece of pieces) yield { piece, matrix: true }
  }
}

/**
 * `plans`: of all shards that will be loaded from this checkpoint, so that a tensor of another rank's experts is known.
 * @throws CheckpointError SY_CHECKPOINT_WEIGHTS that lists the first 10 problems; `fields.all` holds them all
 */
export function checkWeights(checkpoint: Checkpoint, plans: readonly WeightPlan[], fp8Block: Fp8Block | null): void {
  const problems: string[] = []
  const known = new Set<string>()
  for (const plan of plans) {
    for (const { piece, matrix } of piecesOf(plan)) {
      if (known.has(piece.tensor)) continue
      known.add(piece.tensor)
      const problem = checkPiece(checkpoint, piece, matrix, fp8Block)
      if (problem !== null) problems.push(problem)
    }
  }
  const skipped = (name: string): boolean => plans.some(plan => plan.skip(name))
  for (const [name, info] of checkpoint.tensors) {
    if (known.has(name) || skipped(name) || isScaleOfKnown(checkpoint, known, name)) continue
    problems.push(`unknown tensor ${name} (${info.dtype} ${showShape(info.shape)})`)
  }
  if (problems.length === 0) return
  throw new CheckpointError('SY_CHECKPOINT_WEIGHTS', {
    file: checkpoint.dir,
    count: problems.length,
    problems:
      problems.slice(0, SHOWN).join('; ') + (problems.length > SHOWN ? `; and ${problems.length - SHOWN} more` : ''),
    all: problems,
  })
}

function isScaleOfKnown(checkpoint: Checkpoint, known: ReadonlySet<string>, name: string): boolean {
  if (!name.endsWith(SCALE_SUFFIX)) return false
  const weight = name.slice(0, -SCALE_SUFFIX.length)
  return known.has(weight) && checkpoint.tensors.get(weight)?.dtype === 'F8_E4M3'
}

/** What is wrong with one source tensor, or null. */
function checkPiece(
  checkpoint: Checkpoint,
  piece: WeightPiece,
  matrix: boolean,
  fp8Block: Fp8Block | null,
): string | null {
  const { tensor, shape } = piece
  const info = checkpoint.tensors.get(tensor)
  if (!info) return `missing tensor ${tensor}: expected ${showShape(shape)}`
  if (!sameShape(info.shape, shape))
    return `tensor ${tensor}: expected ${showShape(shape)}, found ${showShape(info.shape)}`
  if (!SOURCE_DTYPES.includes(info.dtype))
    return `tensor ${tensor}: expected F32, F16, BF16 or F8_E4M3, found ${info.dtype}`
  if (info.dtype !== 'F8_E4M3') return null
  if (!matrix || shape.length !== 2)
    return `tensor ${tensor}: expected F8_E4M3 for matrices only, found it ${showShape(shape)}`
  return checkScale(checkpoint, info, tensor, fp8Block)
}

function checkScale(
  checkpoint: Checkpoint,
  info: TensorInfo,
  tensor: string,
  fp8Block: Fp8Block | null,
): string | null {
  if (fp8Block === null)
    return `tensor ${tensor}: found F8_E4M3, but config.json has no quantization_config with its weight_block_size`
  const name = tensor + SCALE_SUFFIX
  const scale = checkpoint.tensors.get(name)
  const expected = [Math.ceil(info.shape[0]! / fp8Block[0]), Math.ceil(info.shape[1]! / fp8Block[1])]
  if (!scale) return `missing tensor ${name}: expected F32 ${showShape(expected)}, the block scales of ${tensor}`
  if (!SCALE_DTYPES.includes(scale.dtype) || !sameShape(scale.shape, expected))
    return `tensor ${name}: expected F32 or BF16 ${showShape(expected)}, found ${scale.dtype} ${showShape(scale.shape)}`
  return null
}

const sameShape = (a: readonly number[], b: readonly number[]): boolean =>
  a.length === b.length && a.every((side, i) => side === b[i])
