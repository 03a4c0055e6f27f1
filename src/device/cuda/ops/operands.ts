// Operands as CUDA kernels take them: address, strides, and how many elements a thread may load at once. Row counts are
// checked against spans as on the CPU; indices that kernels read from memory are checked by the kernels (faults.ts).
import { Unreachable } from '../../../config/errors.js'
import { checkRows } from '../../cpu/reference/rows.js'
import {
  type ActivationDtype,
  elementBytes,
  type Kernel,
  type Operand,
  type PackedMatrix,
  type ParameterVector,
} from '../../ops.js'
import type { CudaKernels } from '../kernels.js'

/** What kernels call an operand's type: `f32` or `bf16`. */
export const typeOf = (o: Operand): ActivationDtype => o.dtype ?? 'f32'

/** An operand with its place and the rows of `width` elements that its span holds. */
export interface Field {
  readonly address: number
  readonly stride: number
  readonly bytes: 2 | 4
  readonly type: ActivationDtype
  readonly capacity: number
}

export function field(d: CudaKernels, o: Operand, width = 1): Field {
  const type = typeOf(o)
  const bytes = elementBytes(type)
  const held = Math.floor(o.span.byteLength / bytes)
  if (o.offset < 0 || o.stride < 0 || o.offset + width > held)
    throw new Unreachable("an operand's first row lies outside its span")
  const capacity = o.stride === 0 ? Number.POSITIVE_INFINITY : Math.floor((held - o.offset - width) / o.stride) + 1
  return { address: d.address(o), stride: o.stride, bytes, type, capacity }
}

/** Where a matrix lies. @throws Unreachable when its span is too small for what it says it holds */
export function matrixAddress(d: CudaKernels, m: PackedMatrix): number {
  if (m.span.byteLength < (m.count - 1) * m.strideBytes + m.n * m.k * elementBytes(m.kind))
    throw new Unreachable('a matrix reaches beyond its span')
  return d.addressOf(m.span)
}

/** Elements between matrices. */
export const matrixStride = (m: PackedMatrix): number => m.strideBytes / elementBytes(m.kind)

/** The address of parameters, or 0. */
export function vectorAddress(d: CudaKernels, v: ParameterVector | undefined, least: number): number {
  if (!v) return 0
  if (v.length < least || v.span.byteLength < v.length * 4) throw new Unreachable('too few parameters')
  return d.addressOf(v.span)
}

/** Something that is read `width` elements at a time: rows, or a vector (stride 0). */
export interface Vectored {
  readonly address: number
  readonly stride: number
  readonly bytes: number
}

/** The rows of a matrix. Matrices begin at multiples of 64 bytes. */
export const rowsOfMatrix = (d: CudaKernels, m: PackedMatrix): Vectored => ({
  address: matrixAddress(d, m),
  stride: m.k,
  bytes: elementBytes(m.kind),
})

export const parameterField = (address: number): Vectored => ({ address, stride: 0, bytes: 4 })

/**
 * The largest of `choices` that divides `width` and by which every place can be read: up to 16 bytes at once, from addresses
 * that are multiples of that.
 */
export function vectorWidth<const V extends number>(
  choices: readonly V[],
  width: number,
  places: readonly Vectored[],
): V {
  const fits = (v: number) =>
    width % v === 0 &&
    places.every(p => {
      const access = Math.min(16, v * p.bytes)
      return p.address % access === 0 && (p.stride * p.bytes) % access === 0
    })
  return choices.find(fits) ?? choices.at(-1)!
}

/** A kernel that checks the number of rows and queues nothing for none. */
export function kernelOf(fields: readonly { readonly capacity: number }[], run: (rows: number) => void): Kernel {
  const most = Math.min(...fields.map(f => f.capacity))
  return rows => {
    checkRows(rows, most)
    if (rows > 0) run(rows)
  }
}

/** As an argument of type int. */
export const bounded = (capacity: number): number => Math.min(capacity, 0x7fffffff)

export const ceilDiv = (a: number, b: number): number => Math.ceil(a / b)

/** What CUDA allows along y and z of a grid; kernels walk on from there. */
export const MOST_BLOCKS_Y = 65535

/** Grid and block of element-wise kernels: pieces of a row along x, rows along y. */
export function elementGrid(
  width: number,
  perThread: number,
): { threads: number; grid: (rows: number) => [number, number, number] } {
  const pieces = ceilDiv(width, perThread)
  const threads = Math.min(256, ceilDiv(pieces, 32) * 32)
  const x = ceilDiv(pieces, threads)
  return { threads, grid: rows => [x, Math.min(rows, MOST_BLOCKS_Y), 1] }
}
