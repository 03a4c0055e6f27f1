// Reads and checks the header of one safetensors file: u64 length (little endian), JSON, then the tensors' bytes.
// Invariant: what comes back covers the data exactly once, in order, and stays inside the file; nothing of the size that a
// header merely claims is allocated. It reads no tensor.
import { closeSync, fstatSync, openSync, readSync } from 'node:fs'
import { decodeUtf8, describeJson, findDuplicateKey, isJsonObject } from '../json-file.js'
import { CheckpointError } from './checkpoint-errors.js'
import { DTYPE_BYTES, elementCount, showShape } from './dtypes.js'

/** The limit of the safetensors library itself: a header may not be longer than this. */
export const MAX_HEADER_BYTES = 100_000_000
const MAX_DIMENSIONS = 16

export interface TensorInfo {
  readonly dtype: string
  readonly shape: readonly number[]
  /** Path of the file that holds it. */
  readonly file: string
  /** First byte, from the start of the file. */
  readonly offset: number
  readonly bytes: number
}

export interface SafetensorsHeader {
  readonly tensors: ReadonlyMap<string, TensorInfo>
  readonly metadata: Readonly<Record<string, string>>
}

/** @throws CheckpointError naming the file, the tensor, what was expected and what was found. */
export function readSafetensorsHeader(file: string): SafetensorsHeader {
  const { text, size, dataStart } = readHeaderText(file)
  let parsed: unknown
  try {
    parsed = JSON.parse(text)
  } catch (error) {
    throw new CheckpointError('SY_CHECKPOINT_HEADER', {
      file,
      expected: 'JSON',
      found: (error as Error).message.slice(0, 160),
    })
  }
  if (!isJsonObject(parsed))
    throw new CheckpointError('SY_CHECKPOINT_HEADER', { file, expected: 'a JSON object', found: describeJson(parsed) })
  const twice = findDuplicateKey(text)
  if (twice !== null)
    throw new CheckpointError('SY_CHECKPOINT_HEADER', {
      file,
      expected: 'each name once',
      found: `${describeJson(twice)} twice`,
    })

  const metadata = readMetadata(file, parsed['__metadata__'])
  const entries: [string, TensorInfo][] = []
  for (const [name, entry] of Object.entries(parsed))
    if (name !== '__metadata__') entries.push([name, readEntry(file, name, entry, dataStart, size)])
  checkCoverage(file, entries, dataStart, size)
  return { tensors: new Map(entries), metadata }
}

function readHeaderText(file: string): { text: string; size: number; dataStart: number } {
  let descriptor: number
  try {
    descriptor = openSync(file, 'r')
  } catch (error) {
    throw new CheckpointError('SY_CHECKPOINT_READ', {
      file,
      found: (error as NodeJS.ErrnoException).code ?? 'an error',
    })
  }
  try {
    const stat = fstatSync(descriptor)
    if (!stat.isFile())
      throw new CheckpointError('SY_CHECKPOINT_NOT_FOUND', { file, expected: 'a file', found: 'something else' })
    const size = stat.size
    if (size < 8)
      throw new CheckpointError('SY_CHECKPOINT_TRUNCATED', {
        file,
        tensor: 'the header length',
        expected: 8,
        found: size,
      })
    const prefix = new Uint8Array(8)
    readSync(descriptor, prefix, 0, 8, 0)
    const length = new DataView(prefix.buffer).getBigUint64(0, true)
    if (length > BigInt(MAX_HEADER_BYTES) || length < 2n)
      throw new CheckpointError('SY_CHECKPOINT_HEADER', {
        file,
        expected: `a header of 2 to ${MAX_HEADER_BYTES} bytes`,
        found: `a length of ${length}`,
      })
    const headerBytes = Number(length)
    if (8 + headerBytes > size)
      throw new CheckpointError('SY_CHECKPOINT_TRUNCATED', {
        file,
        tensor: 'the header',
        expected: 8 + headerBytes,
        found: size,
      })
    const bytes = new Uint8Array(headerBytes)
    const got = readSync(descriptor, bytes, 0, headerBytes, 8)
    if (got !== headerBytes)
      throw new CheckpointError('SY_CHECKPOINT_READ', { file, found: `${got} of ${headerBytes} header bytes` })
    const text = decodeUtf8(bytes)
    if (text === null)
      throw new CheckpointError('SY_CHECKPOINT_HEADER', { file, expected: 'UTF-8', found: 'other bytes' })
    return { text, size, dataStart: 8 + headerBytes }
  } catch (error) {
    if (error instanceof CheckpointError) throw error
    throw new CheckpointError('SY_CHECKPOINT_READ', {
      file,
      found: (error as NodeJS.ErrnoException).code ?? 'an error',
    })
  } finally {
    closeSync(descriptor)
  }
}

function readMetadata(file: string, value: unknown): Record<string, string> {
  if (value === undefined || value === null) return {}
  if (!isJsonObject(value) || Object.values(value).some(v => typeof v !== 'string'))
    throw new CheckpointError('SY_CHECKPOINT_HEADER', {
      file,
      expected: '__metadata__ as an object of strings',
      found: isJsonObject(value) ? 'other values in it' : describeJson(value),
    })
  return value as Record<string, string>
}

const isCount = (value: unknown): value is number => Number.isSafeInteger(value) && (value as number) >= 0

function readEntry(file: string, name: string, entry: unknown, dataStart: number, size: number): TensorInfo {
  const refuse = (expected: string, found: string): never => {
    throw new CheckpointError('SY_CHECKPOINT_TENSOR', { file, tensor: shortName(name), expected, found })
  }
  if (!isJsonObject(entry)) return refuse('an object with dtype, shape and data_offsets', describeJson(entry))
  const { dtype, shape, data_offsets: offsets } = entry
  const elementBytes = typeof dtype === 'string' && Object.hasOwn(DTYPE_BYTES, dtype) ? DTYPE_BYTES[dtype] : undefined
  if (typeof dtype !== 'string' || elementBytes === undefined)
    return refuse(`a dtype of ${Object.keys(DTYPE_BYTES).join(' ')}`, describeJson(dtype))
  if (!Array.isArray(shape) || shape.length > MAX_DIMENSIONS || !shape.every(isCount))
    return refuse(
      `a shape of at most ${MAX_DIMENSIONS} whole numbers`,
      Array.isArray(shape) && shape.length <= MAX_DIMENSIONS ? JSON.stringify(shape) : describeJson(shape),
    )
  if (!Array.isArray(offsets) || offsets.length !== 2 || !offsets.every(isCount))
    return refuse('data_offsets of two whole numbers', describeJson(offsets))
  const [begin, end] = offsets as [number, number]
  if (begin > end) return refuse('data_offsets in order', `[${begin}, ${end}]`)
  const needed = elementCount(shape as number[]) * elementBytes
  if (needed !== end - begin)
    return refuse(`${needed} bytes for ${dtype} ${showShape(shape as number[])}`, `${end - begin} bytes`)
  if (dataStart + end > size)
    throw new CheckpointError('SY_CHECKPOINT_TRUNCATED', {
      file,
      tensor: shortName(name),
      expected: dataStart + end,
      found: size,
    })
  return { dtype, shape: shape as number[], file, offset: dataStart + begin, bytes: end - begin }
}

/** The format lets tensors lie in any order, but they must fill the data without gaps or overlaps. */
function checkCoverage(file: string, entries: readonly [string, TensorInfo][], dataStart: number, size: number): void {
  const sorted = [...entries].sort((a, b) => a[1].offset - b[1].offset || a[1].bytes - b[1].bytes)
  let at = dataStart
  let previous = 'the header'
  for (const [name, tensor] of sorted) {
    if (tensor.offset !== at)
      throw new CheckpointError('SY_CHECKPOINT_TENSOR', {
        file,
        tensor: shortName(name),
        expected: `data right behind ${shortName(previous)} (offset ${at - dataStart})`,
        found: `${tensor.offset < at ? 'an overlap' : 'a gap'} (offset ${tensor.offset - dataStart})`,
      })
    at = tensor.offset + tensor.bytes
    previous = name
  }
  if (at !== size)
    throw new CheckpointError('SY_CHECKPOINT_HEADER', {
      file,
      expected: `${size - dataStart} bytes of tensors, the rest of the file`,
      found: `${at - dataStart} bytes of tensors`,
    })
}

const shortName = (name: string): string => (name.length > 200 ? `${name.slice(0, 197)}...` : name)
