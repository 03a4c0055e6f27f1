// A tensor of a `.pt` file: a strided window on a storage's bytes, decoded only when asked.
// Invariant: every index that shape, strides and offset can reach lies inside the storage (checked at construction).
// Not a tensor library: it can be listed in row-major order as numbers, and that is all.

import { halfToNumber } from '../half-float.js'
import { TorchFileError } from './errors.js'

/** Element types that can hold counts or maps, with their size in bytes. */
export const DTYPE_BYTES = {
  bool: 1,
  uint8: 1,
  int8: 1,
  uint16: 2,
  int16: 2,
  float16: 2,
  bfloat16: 2,
  uint32: 4,
  int32: 4,
  float32: 4,
  uint64: 8,
  int64: 8,
  float64: 8,
} as const

export type TorchDtype = keyof typeof DTYPE_BYTES

/** The bytes behind one or more tensors. `bytes` is filled late for files whose data follow the description. */
export interface TorchStorage {
  readonly key: string
  /** Undefined: untyped bytes, the tensor says what they are. */
  readonly dtype: TorchDtype | undefined
  /** Where it lived when saved ("cpu", "cuda:3"); never used. */
  readonly location: string
  readonly byteLength: number
  bytes: Uint8Array | undefined
  littleEndian: boolean
}

/** Most elements a tensor may have: 2^28, a thousand steps of 61 layers × 384 experts eleven times over. */
export const MAX_ELEMENTS = 2 ** 28

/** Elements a view may have however little its storage holds. */
const MAX_EXPANDED = 2 ** 20

export interface TensorWindow {
  readonly dtype: TorchDtype
  readonly shape: readonly number[]
  /** In elements, per dimension. */
  readonly strides: readonly number[]
  /** In elements from the storage's start. */
  readonly offset: number
}

export class TorchTensor {
  readonly file: string
  readonly storage: TorchStorage
  readonly dtype: TorchDtype
  readonly shape: readonly number[]
  readonly strides: readonly number[]
  readonly offset: number
  /** Number of elements. */
  readonly length: number

  constructor(file: string, storage: TorchStorage, window: TensorWindow) {
    this.file = file
    this.storage = storage
    this.dtype = window.dtype
    this.shape = window.shape
    this.strides = window.strides
    this.offset = window.offset
    this.length = checkWindow(file, storage, window)
  }

  /**
   * All elements in row-major order, as numbers. bool is 0 or 1; NaN and infinities stay what they are.
   * @throws TorchFileError SY_TORCH_INT64_RANGE when a 64-bit integer is beyond 2^53
   */
  toFloat64(): Float64Array {
    const out = new Float64Array(this.length)
    if (this.length === 0) return out
    const bytes = this.storage.bytes
    if (bytes === undefined) {
      throw new TorchFileError('SY_TORCH_DAMAGED', { file: this.file, why: `storage ${this.storage.key} is missing` })
    }
    const get = reader(
      this.dtype,
      new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength),
      this.storage,
      this.file,
    )
    const rank = this.shape.length
    if (rank === 0) {
      out[0] = get(this.offset)
      return out
    }
    const inner = this.shape[rank - 1]!
    const step = this.strides[rank - 1]!
    const index = new Array<number>(rank).fill(0)
    let base = this.offset
    for (let at = 0; at < this.length; ) {
      for (let i = 0, p = base; i < inner; i++, p += step) out[at++] = get(p)
      for (let d = rank - 2; d >= 0; d--) {
        base += this.strides[d]!
        index[d] = index[d]! + 1
        if (index[d]! < this.shape[d]!) break
        base -= this.strides[d]! * this.shape[d]!
        index[d] = 0
      }
    }
    return out
  }
}

function checkWindow(file: string, storage: TorchStorage, window: TensorWindow): number {
  const { shape, strides, offset, dtype } = window
  const natural = (n: unknown) => typeof n === 'number' && Number.isSafeInteger(n) && n >= 0
  if (shape.length !== strides.length || shape.length > 16 || ![...shape, ...strides, offset].every(natural)) {
    throw new TorchFileError('SY_TORCH_DAMAGED', { file, why: 'a tensor has an impossible shape' })
  }
  const length = shape.reduce((product, n) => product * n, 1)
  if (length > MAX_ELEMENTS) {
    throw new TorchFileError('SY_TORCH_TOO_LARGE', {
      file,
      what: `a tensor of shape [${shape.join(', ')}]`,
      size: `${length} elements`,
      limit: `${MAX_ELEMENTS} elements`,
    })
  }
  // An expanded view repeats its storage; a short file must not ask for gigabytes that way.
  const stored = Math.floor(storage.byteLength / DTYPE_BYTES[dtype])
  if (length > MAX_EXPANDED && length > 4 * stored) {
    throw new TorchFileError('SY_TORCH_TOO_LARGE', {
      file,
      what: `an expanded tensor of shape [${shape.join(', ')}]`,
      size: `${length} elements`,
      limit: `${Math.max(MAX_EXPANDED, 4 * stored)} elements for its storage`,
    })
  }
  const last = shape.reduce((sum, n, d) => sum + (n - 1) * strides[d]!, offset)
  if (length > 0 && (last + 1) * DTYPE_BYTES[dtype] > storage.byteLength) {
    throw new TorchFileError('SY_TORCH_DAMAGED', {
      file,
      why: `a tensor of shape [${shape.join(', ')}] reaches past the end of its storage ${storage.key}`,
    })
  }
  return length
}

function reader(dtype: TorchDtype, data: DataView, storage: TorchStorage, file: string): (index: number) => number {
  const le = storage.littleEndian
  switch (dtype) {
    case 'bool':
      return i => (data.getUint8(i) === 0 ? 0 : 1)
    case 'uint8':
      return i => data.getUint8(i)
    case 'int8':
      return i => data.getInt8(i)
    case 'uint16':
      return i => data.getUint16(i * 2, le)
    case 'int16':
      return i => data.getInt16(i * 2, le)
    case 'float16':
      return i => halfToNumber(data.getUint16(i * 2, le))
    case 'bfloat16': {
      const scratch = new DataView(new ArrayBuffer(4))
      return i => {
        scratch.setUint32(0, data.getUint16(i * 2, le) << 16)
        return scratch.getFloat32(0)
      }
    }
    case 'uint32':
      return i => data.getUint32(i * 4, le)
    case 'int32':
      return i => data.getInt32(i * 4, le)
    case 'float32':
      return i => data.getFloat32(i * 4, le)
    case 'float64':
      return i => data.getFloat64(i * 8, le)
    case 'uint64':
    case 'int64':
      return i => {
        const high =
          dtype === 'int64' ? data.getInt32(i * 8 + (le ? 4 : 0), le) : data.getUint32(i * 8 + (le ? 4 : 0), le)
        const value = high * 2 ** 32 + data.getUint32(i * 8 + (le ? 0 : 4), le)
        if (!Number.isSafeInteger(value)) {
          const exact = dtype === 'int64' ? data.getBigInt64(i * 8, le) : data.getBigUint64(i * 8, le)
          throw new TorchFileError('SY_TORCH_INT64_RANGE', { file, value: exact.toString() })
        }
        return value
      }
  }
}
