// Wire formats: how a row of f32 travels between ranks. f32; bf16, rounded to nearest even; fp8 e4m3 ("fn") with one f32
// scale for every 128 elements, optionally a power of two; int8 with one f32 scale for the row (a token).
// A wire row is the elements, then the scales, padded to a multiple of 64 bytes. Sums are never made in a wire format.
import { alignUp, type MemorySpan } from '../../device/memory.js'
import type { Operand } from '../../device/ops.js'

export const WIRE_DTYPES = ['f32', 'bf16', 'fp8', 'int8'] as const
export type WireDtype = (typeof WIRE_DTYPES)[number]

/** Elements that share a scale in fp8: the quantisation block, not the row alignment of a GEMM. */
export const QUANT_BLOCK = 128

export interface WireFormat {
  readonly dtype: WireDtype
  /** fp8 only: scales are rounded up to powers of two. */
  readonly roundScales: boolean
  /** Elements of a row. */
  readonly hidden: number
  /** Bytes from the start of a row to its first scale (f32); for formats without scales, to the end of the elements. */
  readonly scaleOffset: number
  /** f32 scales of a row. */
  readonly scales: number
  /** Bytes between rows, a multiple of 64. */
  readonly rowBytes: number
}

/** Row r starts at byte `r * format.rowBytes` of `span`. */
export interface WireRows {
  readonly format: WireFormat
  readonly span: MemorySpan
}

/** Rows for or from a dispatch: plain f32, or in the wire format (quantised before dispatch, or left so after it). */
export type Payload =
  | { readonly kind: 'f32'; readonly rows: Operand }
  | { readonly kind: 'wire'; readonly rows: WireRows }

const ELEMENT_BYTES: Readonly<Record<WireDtype, number>> = { f32: 4, bf16: 2, fp8: 1, int8: 1 }

export function wireFormat(dtype: WireDtype, hidden: number, roundScales = false): WireFormat {
  const scales = dtype === 'fp8' ? Math.ceil(hidden / QUANT_BLOCK) : dtype === 'int8' ? 1 : 0
  const scaleOffset = alignUp(hidden * ELEMENT_BYTES[dtype], 4)
  const rowBytes = alignUp(scaleOffset + 4 * scales)
  return Object.freeze({ dtype, roundScales: roundScales && dtype === 'fp8', hidden, scaleOffset, scales, rowBytes })
}

export const sameFormat = (a: WireFormat, b: WireFormat): boolean =>
  a.dtype === b.dtype && a.roundScales === b.roundScales && a.hidden === b.hidden
