// Loads a model's weights from a checkpoint: checks everything, then packs tensor by tensor straight from the mapped file.
// FP8 tensors are multiplied by their block scales on the way. It knows nothing of layouts: a shard is another plan.
import { Unreachable } from '../../config/errors.js'
import type { PackSource, SourceDtype } from '../../device/ops.js'
import type { Checkpoint } from '../safetensors/index.js'
import type { LoadedWeights, WeightPlan } from '../weight-spec.js'
import { checkWeights, type Fp8Block, SCALE_SUFFIX } from './check-weights.js'
import { narrowPlan } from './narrow-plan.js'
import { type PackOptions, packPlan } from './pack-plan.js'
import { matrixStrides, vectorStrides } from './pack-source.js'

export interface LoadOptions extends PackOptions {
  readonly checkpoint: Checkpoint
  /** Rows and columns of an FP8 block, from the config; null for plain weights. */
  readonly fp8Block: Fp8Block | null
  /** Plans of other shards of the same checkpoint: their tensors are checked and known, but not loaded here. */
  readonly otherPlans?: readonly WeightPlan[]
}

/**
 * @throws CheckpointError SY_CHECKPOINT_WEIGHTS before anything is packed, when tensors are missing, unknown, or of another
 * shape or type; other CheckpointErrors when a file changes while it is read
 */
export async function loadWeights(options: LoadOptions): Promise<LoadedWeights> {
  const { checkpoint, plan, fp8Block } = options
  checkWeights(checkpoint, [plan, ...(options.otherPlans ?? [])], fp8Block)
  const source = sourceReader(checkpoint, fp8Block)
  const isBf16 = (tensor: string): boolean => checkpoint.tensors.get(tensor)!.dtype === 'BF16'
  const packed = options.packer.keepsBf16 && options.dtype === 'bf16' ? narrowPlan(plan, isBf16) : plan
  return packPlan({ ...options, plan: packed }, (piece, weight, use) => {
    const strides = weight.form === 'matrix' ? matrixStrides(piece) : vectorStrides(piece)
    if (weight.form === 'matrix' && strides.k !== weight.k)
      throw new Unreachable(`weight ${weight.name}: a piece of ${piece.tensor} has ${strides.k} inputs of ${weight.k}`)
    const { offset, strideN, strideK } = strides
    use(0, piece.rows.count, { ...source(piece.tensor), offset, strideN, strideK })
  })
}

type Source = Pick<PackSource, 'dtype' | 'bytes' | 'scales'>

/** Keeps the last tensor: the experts of a stacked tensor ask for it again and again. */
function sourceReader(checkpoint: Checkpoint, fp8Block: Fp8Block | null): (tensor: string) => Source {
  let lastName: string | null = null
  let last: Source | null = null
  return tensor => {
    if (tensor === lastName && last !== null) return last
    const info = checkpoint.tensors.get(tensor)!
    const bytes = checkpoint.read(tensor)
    const dtype = info.dtype as SourceDtype
    lastName = tensor
    last =
      dtype === 'F8_E4M3'
        ? { dtype, bytes, scales: readScales(checkpoint, tensor, info.shape[1]!, fp8Block!) }
        : { dtype, bytes }
    return last
  }
}

function readScales(
  checkpoint: Checkpoint,
  tensor: string,
  sourceColumns: number,
  [blockRows, blockCols]: Fp8Block,
): NonNullable<PackSource['scales']> {
  const name = tensor + SCALE_SUFFIX
  const bytes = checkpoint.read(name)
  const wide = checkpoint.tensors.get(name)!.dtype === 'F32'
  const bits = new Uint32Array(bytes.byteLength / (wide ? 4 : 2))
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength)
  for (let i = 0; i < bits.length; i++) bits[i] = wide ? view.getUint32(4 * i, true) : view.getUint16(2 * i, true) << 16
  const values = new Float32Array(bits.buffer)
  return { values, blockRows, blockCols, columns: Math.ceil(sourceColumns / blockCols), sourceColumns }
}
