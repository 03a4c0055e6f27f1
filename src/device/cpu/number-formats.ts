// The number formats of checkpoints, one element at a time: F32, F16, BF16, F8 E4M3 ("fn": no infinities, 0x7f is NaN).
// Exact, except for rounding to bf16 (to nearest even) and the f32 product with an F8 block scale.
import { Unreachable } from '../../config/errors.js'
import type { PackSource, SourceDtype } from '../ops.js'

export const BYTES_OF: Readonly<Record<SourceDtype, number>> = { F32: 4, F16: 2, BF16: 2, F8_E4M3: 1 }

export function halfToNumber(h: number): number {
  const sign = h & 0x8000 ? -1 : 1
  const exponent = (h >> 10) & 31
  const fraction = h & 1023
  if (exponent === 31) return fraction ? Number.NaN : sign * Number.POSITIVE_INFINITY
  return exponent ? sign * (1 + fraction / 1024) * 2 ** (exponent - 15) : sign * fraction * 2 ** -24
}

export function e4m3ToNumber(b: number): number {
  const sign = b & 0x80 ? -1 : 1
  const exponent = (b >> 3) & 15
  const fraction = b & 7
  if ((b & 0x7f) === 0x7f) return Number.NaN
  return exponent ? sign * (1 + fraction / 8) * 2 ** (exponent - 7) : sign * fraction * 2 ** -9
}

/** The upper half of an f32 after rounding to nearest even, as a u16. */
export function roundToBf16(value: number): number {
  const f = new Float32Array(1)
  f[0] = value
  const b = new Uint32Array(f.buffer)[0]!
  if ((b & 0x7fffffff) > 0x7f800000) return (b >>> 16) | 0x40
  return ((b + 0x7fff + ((b >>> 16) & 1)) >>> 16) & 0xffff
}

export function bf16ToNumber(h: number): number {
  return new Float32Array(Uint32Array.of((h << 16) >>> 0).buffer)[0]!
}

/** Reads single elements of a source; checks first that elements [0, n) × [0, k) lie inside it. */
export function elementReader(source: PackSource, n: number, k: number): (element: number) => number {
  const { bytes, dtype, scales: s } = source
  const last = source.offset + (n - 1) * source.strideN + (k - 1) * source.strideK
  if (source.offset < 0 || source.strideN < 0 || source.strideK < 0 || (last + 1) * BYTES_OF[dtype] > bytes.byteLength)
    throw new Unreachable('a packing source reaches beyond its tensor')
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength)
  if (dtype === 'F32') return i => view.getFloat32(i * 4, true)
  if (dtype === 'F16') return i => halfToNumber(view.getUint16(i * 2, true))
  if (dtype === 'BF16') return i => bf16ToNumber(view.getUint16(i * 2, true))
  if (!s) return i => e4m3ToNumber(bytes[i]!)
  const scaleRows = Math.floor(Math.floor(last / s.sourceColumns) / s.blockRows) + 1
  if (Math.floor((s.sourceColumns - 1) / s.blockCols) >= s.columns || scaleRows * s.columns > s.values.length)
    throw new Unreachable('too few scales for a packing source')
  return i => {
    const r = Math.floor(i / s.sourceColumns)
    const c = i - r * s.sourceColumns
    const scale = s.values[Math.floor(r / s.blockRows) * s.columns + Math.floor(c / s.blockCols)]!
    return Math.fround(e4m3ToNumber(bytes[i]!) * scale)
  }
}
