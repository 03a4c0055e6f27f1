// f32 to the number formats of checkpoints, for tests that derive one checkpoint from another. Rounds to nearest even.
// Written apart from the kernels' conversions, by search over all values, so that one checks the other.

/** Value of each finite E4M3 code from 0x00 to 0x7e, ascending. */
const E4M3 = Array.from({ length: 0x7f }, (_, code) => {
  const exponent = code >> 3
  const fraction = code & 7
  return exponent === 0 ? fraction * 2 ** -9 : (8 + fraction) * 2 ** (exponent - 10)
})

/** Largest finite E4M3 value. */
export const E4M3_MAX = 448

export function toE4m3(value: number): number {
  const magnitude = Math.min(Math.abs(value), E4M3_MAX)
  let low = 0
  let high = E4M3.length - 1
  while (high - low > 1) {
    const middle = (low + high) >> 1
    if (E4M3[middle]! <= magnitude) low = middle
    else high = middle
  }
  const below = magnitude - E4M3[low]!
  const above = E4M3[high]! - magnitude
  const code = below < above || (below === above && low % 2 === 0) ? low : high
  return value < 0 ? code | 0x80 : code
}

export const fromE4m3 = (code: number): number => (code & 0x80 ? -1 : 1) * E4M3[code & 0x7f]!

const f32 = new Float32Array(1)
const u32 = new Uint32Array(f32.buffer)

/** bf16 bits of a finite number. */
export function toBf16(value: number): number {
  f32[0] = value
  const bits = u32[0]!
  return (bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16
}

export function fromBf16(bits: number): number {
  u32[0] = bits << 16
  return f32[0]!
}

/** f16 bits of a number below 65504. */
export function toF16(value: number): number {
  const sign = value < 0 || Object.is(value, -0) ? 0x8000 : 0
  const magnitude = Math.abs(value)
  if (magnitude === 0) return sign
  const exponent = Math.max(Math.floor(Math.log2(magnitude)), -14)
  const steps = magnitude / 2 ** (exponent - 10)
  let whole = Math.floor(steps)
  const rest = steps - whole
  if (rest > 0.5 || (rest === 0.5 && whole % 2 === 1)) whole++
  // A carry out of the fraction raises the exponent by itself.
  return sign | ((exponent + 14) * 1024 + whole)
}

export function fromF16(bits: number): number {
  const exponent = (bits >> 10) & 31
  const fraction = bits & 1023
  const magnitude = exponent === 0 ? fraction * 2 ** -24 : (1024 + fraction) * 2 ** (exponent - 25)
  return bits & 0x8000 ? -magnitude : magnitude
}
