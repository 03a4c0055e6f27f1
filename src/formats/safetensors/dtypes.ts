// Element types of the safetensors format and their sizes. Facts of the format; sub-byte types (F4, F6) are not read.

/** Bytes of one element, by the format's name of the type. */
export const DTYPE_BYTES: Readonly<Record<string, number>> = {
  BOOL: 1,
  U8: 1,
  I8: 1,
  F8_E4M3: 1,
  F8_E5M2: 1,
  F8_E8M0: 1,
  I16: 2,
  U16: 2,
  F16: 2,
  BF16: 2,
  I32: 4,
  U32: 4,
  F32: 4,
  I64: 8,
  U64: 8,
  F64: 8,
  C64: 8,
}

/** Elements of a shape; Infinity when the product leaves the safe integers. */
export function elementCount(shape: readonly number[]): number {
  let count = 1
  for (const side of shape) {
    count *= side
    if (!Number.isSafeInteger(count)) return Number.POSITIVE_INFINITY
  }
  return count
}

export const showShape = (shape: readonly number[]): string => `[${shape.join(', ')}]`
