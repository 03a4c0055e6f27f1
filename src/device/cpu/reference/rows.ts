// Operands as the reference kernels read them: a typed array, and the place where a row starts.
// Invariant: `check` refuses row counts that do not fit the span, as the native kernels do.
import { Unreachable } from '../../../config/errors.js'
import { f32View, i32View, type MemorySpan } from '../../memory.js'
import type { Kernel, Operand } from '../../ops.js'

export interface Rows<T extends Float32Array | Int32Array> {
  readonly data: T
  /** Index of the first element of row r. */
  at(row: number): number
  /** Rows of the operand's width that lie inside the span. */
  readonly capacity: number
}

function rows<T extends Float32Array | Int32Array>(data: T, o: Operand, width: number): Rows<T> {
  if (o.offset < 0 || o.stride < 0 || o.offset + width > data.length)
    throw new Unreachable("an operand's first row lies outside its span")
  const { offset, stride } = o
  const capacity = stride === 0 ? Number.POSITIVE_INFINITY : Math.floor((data.length - offset - width) / stride) + 1
  return { data, at: row => offset + row * stride, capacity }
}

export const f32Rows = (o: Operand, width: number): Rows<Float32Array> => rows(f32View(o.span), o, width)
export const i32Rows = (o: Operand, width = 1): Rows<Int32Array> => rows(i32View(o.span), o, width)

/** A vector of parameters, or undefined. */
export const parameters = (v: { span: MemorySpan; length: number } | undefined): Float32Array | undefined =>
  v && f32View(v.span).subarray(0, v.length)

/** A kernel that runs `one` for every row, after checking that all operands hold that many. */
export function perRow(operands: readonly { readonly capacity: number }[], one: (row: number) => void): Kernel {
  const most = Math.min(...operands.map(o => o.capacity))
  return count => {
    checkRows(count, most)
    for (let r = 0; r < count; r++) one(r)
  }
}

export function checkRows(count: number, most: number): void {
  if (!Number.isInteger(count) || count < 0) throw new Unreachable('the number of rows must be an integer from 0 up')
  if (count > most) throw new Unreachable(`${count} rows, but the operands' spans hold ${most}`)
}

/** An index read as data: a page, slot, expert, position or row. */
export function checkIndex(index: number, end: number, what: string): void {
  if (index < 0 || index >= end) throw new Unreachable(`${what} ${index} lies outside its table of ${end}`)
}
