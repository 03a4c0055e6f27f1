// Writes an expert load: `.pt` in the recorder's stat layout (SGLang's --init-expert-location takes it as it is), `.npy`,
// or JSON {"logical_count": [steps][layers][experts]}.

import { npyBytes } from '../npy/index.js'
import { torchFileBytes } from '../torch/index.js'
import { writeWhole } from './placement-file.js'

export interface WritableLoad {
  readonly steps: number
  readonly layers: number
  readonly logical: number
  /** [steps][layers][logical], row-major. */
  readonly counts: Float64Array
}

/** Writes by the extension of `path`. @throws ExpertLoadError SY_LOAD_UNREADABLE */
export function writeExpertLoad(path: string, load: WritableLoad): void {
  const { steps, layers, logical, counts } = load
  const shape = [steps, layers, logical]
  const small = counts.every(n => Number.isInteger(n) && n < 2 ** 31)
  if (path.endsWith('.pt')) {
    const whole = counts.every(n => Number.isInteger(n))
    const dtype = small ? 'int32' : whole ? 'int64' : 'float64'
    const stem = path.replaceAll('\\', '/').split('/').at(-1)!.slice(0, -3) || 'archive'
    writeWhole(path, torchFileBytes({ rank: 0, logical_count: { dtype, shape, values: counts } }, stem))
  } else if (path.endsWith('.npy')) writeWhole(path, npyBytes(shape, small ? Int32Array.from(counts) : counts))
  else {
    const nested = Array.from({ length: steps }, (_, s) =>
      Array.from({ length: layers }, (_, l) => [
        ...counts.subarray((s * layers + l) * logical, (s * layers + l + 1) * logical),
      ]),
    )
    writeWhole(path, `${JSON.stringify({ logical_count: nested })}\n`)
  }
}
