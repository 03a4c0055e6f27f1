// Writes a safetensors file: `logits --out` and the tests' checkpoints. Tensors are laid out widest type first, then by name,
// behind a header padded to 8 bytes, so that every tensor is aligned to its element size, as the safetensors library does.
import { Unreachable } from '../../config/errors.js'
import { writeAll, writeWholeFile } from '../whole-file.js'
import { CheckpointError } from './checkpoint-errors.js'
import { DTYPE_BYTES, elementCount } from './dtypes.js'

export interface TensorToWrite {
  readonly dtype: string
  readonly shape: readonly number[]
  /** Row-major little-endian elements; any typed array. */
  readonly data: ArrayBufferView
}

/** Header bytes (length prefix included) and the tensors in the order of their data. */
function layOut(
  tensors: ReadonlyMap<string, TensorToWrite>,
  metadata: Readonly<Record<string, string>>,
): { header: Uint8Array; order: readonly TensorToWrite[] } {
  const names = [...tensors.keys()].sort((a, b) => {
    const wider = (DTYPE_BYTES[tensors.get(b)!.dtype] ?? 0) - (DTYPE_BYTES[tensors.get(a)!.dtype] ?? 0)
    return wider !== 0 ? wider : a < b ? -1 : 1
  })
  const json: Record<string, unknown> = {}
  if (Object.keys(metadata).length > 0) json['__metadata__'] = metadata
  let offset = 0
  for (const name of names) {
    const { dtype, shape, data } = tensors.get(name)!
    const needed = elementCount(shape) * (DTYPE_BYTES[dtype] ?? Number.NaN)
    if (needed !== data.byteLength)
      throw new Unreachable(`tensor ${name}: ${dtype} [${shape.join(', ')}] given ${data.byteLength} bytes`)
    json[name] = { dtype, shape, data_offsets: [offset, offset + needed] }
    offset += needed
  }
  const text = new TextEncoder().encode(JSON.stringify(json))
  const padded = Math.ceil(text.length / 8) * 8
  const header = new Uint8Array(8 + padded).fill(0x20)
  new DataView(header.buffer).setBigUint64(0, BigInt(padded), true)
  header.set(text, 8)
  return { header, order: names.map(name => tensors.get(name)!) }
}

/** Writes `tensors` to `path`, replacing what is there when all is written. @throws CheckpointError when the disk refuses. */
export function writeSafetensors(
  path: string,
  tensors: ReadonlyMap<string, TensorToWrite>,
  metadata: Readonly<Record<string, string>> = {},
): void {
  const { header, order } = layOut(tensors, metadata)
  try {
    writeWholeFile(path, descriptor => {
      writeAll(descriptor, header)
      for (const { data } of order) writeAll(descriptor, new Uint8Array(data.buffer, data.byteOffset, data.byteLength))
    })
  } catch (error) {
    throw new CheckpointError('SY_CHECKPOINT_WRITE', {
      file: path,
      found: (error as NodeJS.ErrnoException).code ?? (error as Error).message,
    })
  }
}
