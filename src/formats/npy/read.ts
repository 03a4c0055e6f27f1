// Reads an NPY array (format versions 1 to 3): numbers of any width and byte order, C or Fortran order, as float64 in
// row-major order. Invariant: the header is parsed by its three fixed keys, never evaluated; object arrays are refused.
// Source of the layout: NumPy's "NEP 1, a simple file format for NumPy arrays".

import { readFileSync } from 'node:fs'
import { halfToNumber } from '../half-float.js'
import { NpyError } from './errors.js'

export interface NpyArray {
  readonly shape: readonly number[]
  /** As in the header, for example "<i4". */
  readonly dtype: string
  /** Row-major, whatever order the file has. */
  readonly values: Float64Array
}

const MAX_ELEMENTS = 2 ** 28

/** Reads a file from disk. @throws NpyError */
export function loadNpyFile(path: string): NpyArray {
  let bytes: Uint8Array
  try {
    bytes = readFileSync(path)
  } catch (error) {
    const missing = (error as NodeJS.ErrnoException).code === 'ENOENT'
    throw new NpyError('SY_NPY_UNREADABLE', {
      file: path,
      why: missing ? 'there is no such file' : (error as Error).message,
    })
  }
  return loadNpyBytes(path, bytes)
}

/** Reads an array from memory; `file` stands for the path in errors. @throws NpyError */
export function loadNpyBytes(file: string, bytes: Uint8Array): NpyArray {
  const { dtype, fortran, shape, start } = readHeader(file, bytes)
  const elements = shape.reduce((product, n) => product * n, 1)
  if (elements > MAX_ELEMENTS) throw new NpyError('SY_NPY_TOO_LARGE', { file, elements, limit: MAX_ELEMENTS })
  const { width, get } = elementReader(file, dtype, new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength))
  if (start + elements * width > bytes.length) {
    throw new NpyError('SY_NPY_DAMAGED', {
      file,
      why: `its shape [${shape.join(', ')}] needs ${elements * width} bytes, ${bytes.length - start} are there`,
    })
  }
  const values = new Float64Array(elements)
  for (let i = 0; i < elements; i++) values[i] = get(start + i * width)
  return { shape, dtype, values: fortran ? toRowMajor(values, shape) : values }
}

function readHeader(file: string, bytes: Uint8Array) {
  const magic = [0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59]
  if (bytes.length < 10 || !magic.every((byte, i) => bytes[i] === byte)) {
    const zip = bytes[0] === 0x50 && bytes[1] === 0x4b
    throw new NpyError('SY_NPY_NOT_NPY', { file, why: zip ? 'it is a zip archive (.npz?)' : 'its first bytes differ' })
  }
  const version = bytes[6]!
  if (version < 1 || version > 3)
    throw new NpyError('SY_NPY_NOT_NPY', { file, why: `its version ${version} is unknown` })
  const sizeBytes = version === 1 ? 2 : 4
  const data = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength)
  if (bytes.length < 8 + sizeBytes) throw new NpyError('SY_NPY_DAMAGED', { file, why: 'its header is cut off' })
  const length = version === 1 ? data.getUint16(8, true) : data.getUint32(8, true)
  const start = 8 + sizeBytes + length
  if (start > bytes.length || length > 1 << 16)
    throw new NpyError('SY_NPY_DAMAGED', { file, why: 'its header is cut off' })
  const header = new TextDecoder('latin1').decode(bytes.subarray(8 + sizeBytes, start))
  const dtype = /'descr'\s*:\s*'([^']*)'/.exec(header)?.[1]
  const order = /'fortran_order'\s*:\s*(True|False)/.exec(header)?.[1]
  const sizes = /'shape'\s*:\s*\(([\d,\sL]*)\)/.exec(header)?.[1]
  if (dtype === undefined && /'descr'\s*:\s*\[/.test(header)) {
    throw new NpyError('SY_NPY_DTYPE', { file, dtype: 'a record of several fields' })
  }
  if (dtype === undefined || order === undefined || sizes === undefined) {
    throw new NpyError('SY_NPY_DAMAGED', { file, why: 'its header lacks descr, fortran_order or shape' })
  }
  const shape = sizes
    .split(',')
    .map(s => s.replace('L', '').trim())
    .filter(s => s !== '')
    .map(Number)
  if (!shape.every(n => Number.isSafeInteger(n) && n >= 0)) {
    throw new NpyError('SY_NPY_DAMAGED', { file, why: `its shape (${sizes}) is impossible` })
  }
  return { dtype, fortran: order === 'True', shape, start }
}

function elementReader(file: string, dtype: string, data: DataView): { width: number; get: (at: number) => number } {
  const le = dtype[0] !== '>'
  const wide = (signed: boolean) => (at: number) => {
    const value = signed ? data.getBigInt64(at, le) : data.getBigUint64(at, le)
    const number = Number(value)
    if (!Number.isSafeInteger(number)) throw new NpyError('SY_NPY_INT64_RANGE', { file, value: value.toString() })
    return number
  }
  switch (/^[<>|=]?(.+)$/.exec(dtype)?.[1]) {
    case 'b1':
      return { width: 1, get: at => (data.getUint8(at) === 0 ? 0 : 1) }
    case 'u1':
      return { width: 1, get: at => data.getUint8(at) }
    case 'i1':
      return { width: 1, get: at => data.getInt8(at) }
    case 'u2':
      return { width: 2, get: at => data.getUint16(at, le) }
    case 'i2':
      return { width: 2, get: at => data.getInt16(at, le) }
    case 'f2':
      return { width: 2, get: at => halfToNumber(data.getUint16(at, le)) }
    case 'u4':
      return { width: 4, get: at => data.getUint32(at, le) }
    case 'i4':
      return { width: 4, get: at => data.getInt32(at, le) }
    case 'f4':
      return { width: 4, get: at => data.getFloat32(at, le) }
    case 'u8':
      return { width: 8, get: wide(false) }
    case 'i8':
      return { width: 8, get: wide(true) }
    case 'f8':
      return { width: 8, get: at => data.getFloat64(at, le) }
    default:
      throw new NpyError('SY_NPY_DTYPE', { file, dtype })
  }
}

/** Column-major values in row-major order. */
function toRowMajor(values: Float64Array, shape: readonly number[]): Float64Array {
  const out = new Float64Array(values.length)
  const index = new Array<number>(shape.length).fill(0)
  const strides = shape.map((_, d) => shape.slice(0, d).reduce((product, n) => product * n, 1))
  for (let at = 0; at < out.length; at++) {
    out[at] = values[index.reduce((sum, n, d) => sum + n * strides[d]!, 0)]!
    for (let d = shape.length - 1; d >= 0; d--) {
      index[d] = index[d]! + 1
      if (index[d]! < shape[d]!) break
      index[d] = 0
    }
  }
  return out
}
