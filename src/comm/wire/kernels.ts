// Moving rows: the four operations that dispatch and combine are made of, on memory of this rank or of its peers.
// The reference (TypeScript) and the native kernels give the same bits, except that weightedSum rounds as Ops.experts
// does on the same side. Row numbers are checked; a number outside its rows throws and writes nothing there.

import { Unreachable } from '../../config/errors.js'
import { hostBuffer, type MemorySpan } from '../../device/memory.js'
import type { Operand } from '../../device/ops.js'
import type { WireFormat, WireRows } from './format.js'

/** Rows of one format that kernels can reach. Made once for each buffer: it holds views. */
export interface Rows {
  readonly format: WireFormat
  /** Bytes from the start of the buffer to row 0; a multiple of 4. */
  readonly byteOffset: number
  /** Bytes between rows; a multiple of 4. */
  readonly rowBytes: number
  readonly capacity: number
  readonly f32: Float32Array
  readonly i32: Int32Array
  readonly u16: Uint16Array
  readonly u8: Uint8Array
  readonly i8: Int8Array
}

export interface WireKernels {
  /** For reports: "native avx512", "reference". */
  readonly name: string

  /**
   * to[toRow + i] = from[fromRow + i], i < n, encoded or decoded when formats differ (then one of them is f32).
   * An index list replaces counting up. `caching`: what is written bypasses the caches (it is read much later), or stays in
   * them (a ring's rows are read at once); default: by the number of bytes.
   */
  transfer(a: {
    from: Rows
    to: Rows
    n: number
    fromRow?: number
    toRow?: number
    fromIndex?: Int32Array
    toIndex?: Int32Array
    caching?: 'bypass' | 'keep'
  }): void

  /** to[m][table[i·members + m]] = from[fromRow + i], i < n, where the entry is not negative. One format. */
  scatter(a: { from: Rows; to: readonly Rows[]; n: number; fromRow: number; table: Int32Array }): void

  /**
   * out[outRow + i] = Σ over m ascending of from[m][table[i·members + m]], i < n, in f32, starting from the first row there
   * is; negative entries add nothing; zeros when there is none.
   */
  sum(a: { from: readonly Rows[]; out: Rows; n: number; outRow: number; table: Int32Array }): void

  /** to[toIndex[i]] = Σ over k ascending of weights[i·topK + k] · from[index[i·topK + k]]; negative entries add nothing. */
  weightedSum(a: {
    from: Rows
    to: Rows
    n: number
    topK: number
    index: Int32Array
    weights: Float32Array
    toRow?: number
    toIndex?: Int32Array
  }): void
}

function views(span: MemorySpan): Pick<Rows, 'f32' | 'i32' | 'u16' | 'u8' | 'i8'> {
  const { byteOffset, byteLength } = span
  const buffer = hostBuffer(span)
  return {
    f32: new Float32Array(buffer, byteOffset, byteLength >>> 2),
    i32: new Int32Array(buffer, byteOffset, byteLength >>> 2),
    u16: new Uint16Array(buffer, byteOffset, byteLength >>> 1),
    u8: new Uint8Array(buffer, byteOffset, byteLength),
    i8: new Int8Array(buffer, byteOffset, byteLength),
  }
}

/** @param rows how many rows the span is taken to hold; default: all that fit */
export function wireRows(w: WireRows, rows?: number): Rows {
  const fit = Math.floor(w.span.byteLength / w.format.rowBytes)
  if (rows !== undefined && rows > fit) throw new Unreachable(`a span of ${fit} wire rows was to hold ${rows}`)
  return { format: w.format, byteOffset: 0, rowBytes: w.format.rowBytes, capacity: rows ?? fit, ...views(w.span) }
}

/** f32 rows of an operand. @param f32 the f32 format of the operand's width */
export function operandRows(o: Operand, f32: WireFormat): Rows {
  const free = o.span.byteLength / 4 - o.offset - f32.hidden
  const capacity = free < 0 ? 0 : o.stride === 0 ? 1 : Math.floor(free / o.stride) + 1
  return { format: f32, byteOffset: o.offset * 4, rowBytes: o.stride * 4, capacity, ...views(o.span) }
}
