// Packing through the addon and in plain TypeScript. Both write the same bits: conversions are exact, and rounding to
// bf16 is to nearest even.
import { Unreachable } from '../../config/errors.js'
import { alignUp, f32View, u16View } from '../memory.js'
import type { PackedMatrix, Packer, PackSource, ParameterVector, WeightKind } from '../ops.js'
import type { Addon } from './addon.js'
import { ArgumentList } from './native-ops.js'
import { elementReader, roundToBf16 } from './number-formats.js'

export const DTYPE = { F32: 0, F16: 1, BF16: 2, F8_E4M3: 3 } as const

/** Bytes of one panel of 16 output rows. */
export const panelBytes = (kind: WeightKind, k: number): number => (kind === 'f32' ? k : Math.ceil(k / 2)) * 64

export const packedBytes = (kind: WeightKind, n: number, k: number): number =>
  alignUp(Math.ceil(n / 16) * panelBytes(kind, k))

export class NativePacker implements Packer {
  readonly #addon: Addon
  readonly #isa: number
  constructor(addon: Addon, isa: number) {
    this.#addon = addon
    this.#isa = isa
  }

  packedBytes(kind: WeightKind, n: number, k: number): number {
    return packedBytes(kind, n, k)
  }

  packMatrix(target: PackedMatrix, index: number, rowStart: number, n: number, source: PackSource): void {
    const list = new ArgumentList(this.#addon).matrix(target).numbers(index, rowStart, n)
    this.#run('packMatrix', list, source)
  }

  packVector(target: ParameterVector, offset: number, length: number, source: PackSource): void {
    if (offset + length > target.length) throw new Unreachable('packing outside the vector')
    const list = new ArgumentList(this.#addon).span(target.span).numbers(offset, length)
    this.#run('packVector', list, source)
  }

  #run(what: 'packMatrix' | 'packVector', list: ArgumentList, source: PackSource): void {
    const s = source.scales
    list.numbers(DTYPE[source.dtype], source.offset, source.strideN, source.strideK, s !== undefined)
    list.numbers(s?.blockRows ?? 0, s?.blockCols ?? 0, s?.columns ?? 0, s?.sourceColumns ?? 0)
    try {
      this.#addon[what](this.#isa, list.finish(), source.bytes, s?.values)
    } catch (error) {
      throw new Unreachable(`${what}: ${error instanceof Error ? error.message : String(error)}`)
    }
  }
}

export class ReferencePacker implements Packer {
  packedBytes(kind: WeightKind, n: number, k: number): number {
    return packedBytes(kind, n, k)
  }

  packMatrix(target: PackedMatrix, index: number, rowStart: number, n: number, source: PackSource): void {
    const { kind, k } = target
    if (index < 0 || index >= target.count || rowStart < 0 || rowStart + n > target.n)
      throw new Unreachable('packMatrix: packing outside the matrix')
    if (n === 0) return
    const at = elementReader(source, n, k)
    const f32 = kind === 'f32' ? f32View(target.span) : undefined
    const u16 = kind === 'bf16' ? u16View(target.span) : undefined
    for (let i = 0; i < n; i++) {
      const row = rowStart + i
      const panel = index * target.strideBytes + Math.floor(row / 16) * panelBytes(kind, k)
      const lane = row % 16
      const first = source.offset + i * source.strideN
      if (f32) for (let c = 0; c < k; c++) f32[panel / 4 + c * 16 + lane] = at(first + c * source.strideK)
      if (u16)
        for (let c = 0; c < k; c++)
          u16[panel / 2 + (c >> 1) * 32 + lane * 2 + (c & 1)] = roundToBf16(at(first + c * source.strideK))
    }
  }

  packVector(target: ParameterVector, offset: number, length: number, source: PackSource): void {
    if (offset < 0 || offset + length > target.length) throw new Unreachable('packVector: packing outside the vector')
    if (length === 0) return
    const at = elementReader(source, length, 1)
    const out = f32View(target.span)
    for (let i = 0; i < length; i++) out[offset + i] = at(source.offset + i * source.strideN)
  }
}
