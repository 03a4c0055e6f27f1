// quantization_config: block FP8 is read (weights of e4m3 with one f32 scale per block, named weight_scale_inv), everything
// else is refused by name. Which tensors are FP8 is seen from the file itself, so lists of exceptions need no reading.
import { describeJson } from '../json-file.js'
import { ConfigReader } from './config-reader.js'
import { ModelConfigError } from './model-config-errors.js'

const REASONS: Readonly<Record<string, string>> = {
  mxfp4: 'MXFP4 (4-bit blocks with shared exponents) is not read yet',
  gptq: 'GPTQ is not read',
  awq: 'AWQ is not read',
  bitsandbytes: 'bitsandbytes is not read',
  'compressed-tensors': 'compressed-tensors is not read',
}

/** @returns [rows, columns] of an FP8 block, or null for plain weights. @throws ModelConfigError */
export function readQuantization(reader: ConfigReader): readonly [number, number] | null {
  reader.fixed('compression_config', [], 'compressed-tensors is not read')
  const object = reader.object('quantization_config')
  if (object === null || Object.keys(object).length === 0) return null
  const inner = new ConfigReader(reader.file, object, 'quantization_config.')
  const method = inner.string('quant_method', null)
  if (method !== 'fp8') {
    const name = method ?? 'an unnamed method'
    throw new ModelConfigError('SY_MODEL_QUANTIZATION', {
      file: reader.file,
      found: name,
      reason: (Object.hasOwn(REASONS, name) ? REASONS[name] : undefined) ?? 'only block FP8 is read',
    })
  }
  inner.fixed('fmt', ['e4m3'], 'only e4m3 is read')
  inner.fixed('activation_scheme', ['dynamic'], 'activations are not quantised, so fixed activation scales have no use')
  inner.fixed('scale_fmt', ['ue8m0', 'float32', 'fp32'], 'scales are read as f32')
  inner.fixed('is_checkpoint_fp8_serialized', [true], 'the weights must already be FP8')
  inner.inert('modules_to_not_convert', 'ignored_layers', 'dequantize')
  const block = inner.peek('weight_block_size')
  inner.inert('weight_block_size')
  if (block === undefined || block === null)
    throw new ModelConfigError('SY_MODEL_QUANTIZATION', {
      file: reader.file,
      found: 'fp8 without weight_block_size',
      reason: 'one scale a tensor or a row is not read',
    })
  const isSide = (v: unknown): boolean => Number.isSafeInteger(v) && (v as number) >= 1 && (v as number) <= 65536
  if (!Array.isArray(block) || block.length !== 2 || !block.every(isSide))
    inner.refuse(
      'weight_block_size',
      'two whole numbers from 1 to 65536',
      Array.isArray(block) ? JSON.stringify(block) : describeJson(block),
    )
  inner.finish('block FP8')
  return [(block as number[])[0]!, (block as number[])[1]!]
}
