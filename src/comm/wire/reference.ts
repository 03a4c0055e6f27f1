// The wire kernels in plain TypeScript: the definition that the native ones are tested against, and what runs without them.
import { Unreachable } from '../../config/errors.js'
import { decodeRow, encodeRow, meaningfulBytes } from './codec.js'
import type { Rows, WireKernels } from './kernels.js'

function check(rows: Rows, row: number): number {
  if (!(row >= 0 && row < rows.capacity)) throw new Unreachable(`row ${row} lies outside ${rows.capacity} rows`)
  return row
}

const f32At = (rows: Rows, row: number): number => (rows.byteOffset + row * rows.rowBytes) >>> 2

function copyRow(from: Rows, row: number, to: Rows, toRow: number, bytes: number): void {
  const at = from.byteOffset + row * from.rowBytes
  to.u8.set(from.u8.subarray(at, at + bytes), to.byteOffset + toRow * to.rowBytes)
}

function addRow(out: Float32Array, at: number, x: Float32Array, from: number, n: number): void {
  for (let i = 0; i < n; i++) out[at + i] = out[at + i]! + x[from + i]!
}

export const referenceWireKernels: WireKernels = {
  name: 'reference',

  transfer({ from, to, n, fromRow = 0, toRow = 0, fromIndex, toIndex }) {
    const same = from.format.dtype === to.format.dtype
    const bytes = meaningfulBytes(to.format)
    for (let i = 0; i < n; i++) {
      const f = check(from, fromIndex ? fromIndex[i]! : fromRow + i)
      const t = check(to, toIndex ? toIndex[i]! : toRow + i)
      if (same) copyRow(from, f, to, t, bytes)
      else if (from.format.dtype === 'f32') encodeRow(from, f32At(from, f), to, t)
      else decodeRow(from, f, to.f32, f32At(to, t))
    }
  },

  scatter({ from, to, n, fromRow, table }) {
    const bytes = meaningfulBytes(from.format)
    for (let i = 0; i < n; i++) {
      const row = check(from, fromRow + i)
      for (let m = 0; m < to.length; m++) {
        const t = table[i * to.length + m]!
        if (t >= 0) copyRow(from, row, to[m]!, check(to[m]!, t), bytes)
      }
    }
  },

  sum({ from, out, n, outRow, table }) {
    const { hidden } = out.format
    const decoded = new Float32Array(hidden)
    for (let i = 0; i < n; i++) {
      const at = f32At(out, check(out, outRow + i))
      let first = true
      for (let m = 0; m < from.length; m++) {
        const row = table[i * from.length + m]!
        if (row < 0) continue
        const source = from[m]!
        check(source, row)
        if (first) decodeRow(source, row, out.f32, at)
        else if (source.format.dtype === 'f32') addRow(out.f32, at, source.f32, f32At(source, row), hidden)
        else {
          decodeRow(source, row, decoded, 0)
          addRow(out.f32, at, decoded, 0, hidden)
        }
        first = false
      }
      if (first) out.f32.fill(0, at, at + hidden)
    }
  },

  weightedSum({ from, to, n, topK, index, weights, toRow = 0, toIndex }) {
    const { hidden } = from.format
    const sum = new Float64Array(hidden)
    const decoded = new Float32Array(hidden)
    const result = scratchRow(hidden, from)
    for (let i = 0; i < n; i++) {
      const t = check(to, toIndex ? toIndex[i]! : toRow + i)
      sum.fill(0)
      for (let k = 0; k < topK; k++) {
        const row = index[i * topK + k]!
        if (row < 0) continue
        const weight = weights[i * topK + k]!
        decodeRow(from, check(from, row), decoded, 0)
        for (let c = 0; c < hidden; c++) sum[c] = sum[c]! + weight * decoded[c]!
      }
      result.f32.set(sum)
      encodeRow(result, 0, to, t)
    }
  },
}

/** One f32 row of private memory, seen as Rows. */
function scratchRow(hidden: number, like: Rows): Rows {
  const f32 = new Float32Array(hidden)
  const { buffer } = f32
  return {
    format: { ...like.format, dtype: 'f32', scales: 0 },
    byteOffset: 0,
    rowBytes: hidden * 4,
    capacity: 1,
    f32,
    i32: new Int32Array(buffer),
    u16: new Uint16Array(buffer),
    u8: new Uint8Array(buffer),
    i8: new Int8Array(buffer),
  }
}
