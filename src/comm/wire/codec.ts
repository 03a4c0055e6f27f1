// Encoding and decoding of single rows in plain TypeScript: the definition of the wire formats' values.
// fp8: amax of 128 elements, at least 1e-4; scale = amax / 448 (or the next power of two); element = x · (448 / amax),
// rounded to e4m3, nearest even (source: DeepEP's per-token cast). int8: amax of the row; scale = amax / 127.
// A block or row with an element that is not finite decodes to NaN throughout.
import { QUANT_BLOCK, type WireFormat } from './format.js'
import type { Rows } from './kernels.js'

const word = new Float32Array(1)
const bits = new Uint32Array(word.buffer)

const bitsOf = (value: number): number => {
  word[0] = value
  return bits[0]!
}
const floatOf = (pattern: number): number => {
  bits[0] = pattern
  return word[0]!
}

/** Value of each e4m3 code. */
const E4M3 = Float32Array.from({ length: 256 }, (_, code) => {
  const a = code & 0x7f
  const magnitude = a < 8 ? a * 2 ** -9 : floatOf((a << 20) + 0x3c000000)
  return code & 0x80 ? -magnitude : magnitude
})

/** Magnitude bits of the largest of n elements; above 0x7f7fffff when one is not finite. */
function largest(i32: Int32Array, at: number, n: number): number {
  let top = 0
  for (let i = 0; i < n; i++) {
    const v = i32[at + i]! & 0x7fffffff
    if (v > top) top = v
  }
  return top
}

function toBf16(u: number): number {
  if ((u & 0x7fffffff) > 0x7f800000) return ((u >>> 16) | 0x40) & 0xffff
  return ((u + 0x7fff + ((u >>> 16) & 1)) >>> 16) & 0xffff
}

/** `value` (f32, at most a rounding error above 448) to e4m3. */
function toE4m3(value: number): number {
  const v = bitsOf(value)
  const a = v & 0x7fffffff
  // Below 2^-6 steps are 2^-9: adding 2^14 leaves a number of such steps in the low bits.
  const code =
    a < 0x3c800000 ? bitsOf(floatOf(a) + 16384) - 0x46800000 : ((a + 0x7ffff + ((a >>> 20) & 1)) >>> 20) - 960
  return Math.min(code, 0x7e) | ((v >>> 24) & 0x80)
}

/** Scale and what to multiply with, for fp8. */
function fp8Scale(amax: number, roundScales: boolean): [number, number] {
  const floor = Math.max(amax, Math.fround(1e-4))
  const scale = Math.fround(floor / 448)
  if (!roundScales) return [scale, Math.fround(448 / floor)]
  const s = bitsOf(scale)
  const exponent = (s >>> 23) + ((s & 0x7fffff) !== 0 ? 1 : 0)
  return [floatOf(exponent << 23), floatOf((254 - exponent) << 23)]
}

/** Nearest integer of an f32 below 2^22, ties to even. */
const nearest = (value: number): number => Math.fround(Math.fround(value + 12582912) - 12582912)

/** Encodes the f32 row at `from`.f32[at…] into row `row` of `to`. */
export function encodeRow(from: Rows, at: number, to: Rows, row: number): void {
  const { format } = to
  const n = format.hidden
  const start = to.byteOffset + row * to.rowBytes
  if (format.dtype === 'f32') {
    to.f32.set(from.f32.subarray(at, at + n), start >>> 2)
  } else if (format.dtype === 'bf16') {
    const target = start >>> 1
    for (let i = 0; i < n; i++) to.u16[target + i] = toBf16(from.i32[at + i]! >>> 0)
  } else if (format.dtype === 'fp8') {
    for (let b = 0; b < format.scales; b++) encodeBlock(from, at, to, start, b)
  } else {
    encodeInt8(from, at, to, start)
  }
}

function encodeBlock(from: Rows, at: number, to: Rows, start: number, block: number): void {
  const { hidden, scaleOffset, roundScales } = to.format
  const first = block * QUANT_BLOCK
  const end = Math.min(hidden, first + QUANT_BLOCK)
  const top = largest(from.i32, at + first, end - first)
  const scaleAt = ((start + scaleOffset) >>> 2) + block
  if (top >= 0x7f800000) {
    to.f32[scaleAt] = Number.NaN
    to.u8.fill(0, start + first, start + end)
    return
  }
  const [scale, inverse] = fp8Scale(floatOf(top), roundScales)
  to.f32[scaleAt] = scale
  for (let i = first; i < end; i++) to.u8[start + i] = toE4m3(Math.fround(from.f32[at + i]! * inverse))
}

function encodeInt8(from: Rows, at: number, to: Rows, start: number): void {
  const { hidden, scaleOffset } = to.format
  const top = largest(from.i32, at, hidden)
  const scaleAt = (start + scaleOffset) >>> 2
  if (top >= 0x7f800000) {
    to.f32[scaleAt] = Number.NaN
    to.u8.fill(0, start, start + hidden)
    return
  }
  const amax = Math.max(floatOf(top), Math.fround(1e-30))
  to.f32[scaleAt] = amax / 127
  const inverse = Math.fround(127 / amax)
  for (let i = 0; i < hidden; i++) to.i8[start + i] = nearest(Math.fround(from.f32[at + i]! * inverse))
}

/** Decodes row `row` of `from` into `to`[at…]. */
export function decodeRow(from: Rows, row: number, to: Float32Array, at: number): void {
  const { dtype, hidden, scaleOffset } = from.format
  const start = from.byteOffset + row * from.rowBytes
  if (dtype === 'f32') {
    to.set(from.f32.subarray(start >>> 2, (start >>> 2) + hidden), at)
  } else if (dtype === 'bf16') {
    for (let i = 0; i < hidden; i++) to[at + i] = floatOf((from.u16[(start >>> 1) + i]! << 16) >>> 0)
  } else if (dtype === 'fp8') {
    const scales = (start + scaleOffset) >>> 2
    for (let i = 0; i < hidden; i++) to[at + i] = E4M3[from.u8[start + i]!]! * from.f32[scales + (i >>> 7)]!
  } else {
    const scale = from.f32[(start + scaleOffset) >>> 2]!
    for (let i = 0; i < hidden; i++) to[at + i] = from.i8[start + i]! * scale
  }
}

/** Bytes of a row that mean something. */
export const meaningfulBytes = (format: WireFormat): number =>
  format.scales > 0 ? format.scaleOffset + 4 * format.scales : format.hidden * (format.dtype === 'f32' ? 4 : 2)
