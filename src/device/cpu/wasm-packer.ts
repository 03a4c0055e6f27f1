// Packing by the WebAssembly kernels. Sources are views of files, which the module cannot see, so they are copied into
// its memory piece by piece: some output rows at a time, or whole when the source is transposed.
// Invariant: the bits are those of the other packers; the same C++ writes them.
import { Unreachable } from '../../config/errors.js'
import { hostBuffer } from '../memory.js'
import type { PackedMatrix, Packer, PackSource, ParameterVector, WeightKind } from '../ops.js'
import { KIND } from './native-ops.js'
import { BYTES_OF, elementReader } from './number-formats.js'
import { DTYPE, packedBytes, panelBytes } from './packing.js'
import type { WasmKernels } from './wasm-kernels.js'

/** Bytes of source copied at a time, where one output row is not longer. */
const PIECE = 1 << 20

export class WasmPacker implements Packer {
  readonly #kernels: WasmKernels
  #room = 0
  #bytes = 0
  #scaleRoom = 0
  #scales = 0
  readonly #piece: number
  constructor(kernels: WasmKernels, piece = PIECE) {
    this.#kernels = kernels
    this.#piece = piece
  }

  packedBytes(kind: WeightKind, n: number, k: number): number {
    return packedBytes(kind, n, k)
  }

  packMatrix(target: PackedMatrix, index: number, rowStart: number, n: number, source: PackSource): void {
    const { kind, k, span } = target
    if (index < 0 || index >= target.count || rowStart < 0 || rowStart + n > target.n)
      throw new Unreachable('packMatrix: packing outside the matrix')
    const end = index * target.strideBytes + Math.ceil(target.n / 16) * panelBytes(kind, k)
    if (end > span.byteLength) throw new Unreachable('packMatrix: a packed matrix is longer than its span')
    if (n === 0) return
    elementReader(source, n, k) // checks that the elements lie inside the source
    const to =
      this.#kernels.addressOf(new Uint8Array(hostBuffer(span), span.byteOffset, 1)) + index * target.strideBytes
    const rowElements = (k - 1) * source.strideK + 1
    // A transposed source has all rows side by side: what holds one of them holds many.
    const room = Math.max(this.#piece / BYTES_OF[source.dtype], 2 * rowElements)
    const rowsAtOnce = source.strideN === 0 ? n : 1 + Math.floor((room - rowElements) / source.strideN)
    for (let row = 0; row < n; row += rowsAtOnce) {
      const count = Math.min(rowsAtOnce, n - row)
      const first = source.offset + row * source.strideN
      const piece = this.#copy(source, first, (count - 1) * source.strideN + rowElements)
      const numbers = [KIND[kind], k, rowStart + row, count, ...piece.numbers]
      this.#kernels.packMatrix(to, Float64Array.from(numbers), piece.bytes, piece.scales)
    }
  }

  packVector(target: ParameterVector, offset: number, length: number, source: PackSource): void {
    const { span } = target
    if (offset < 0 || offset + length > target.length || target.length * 4 > span.byteLength)
      throw new Unreachable('packVector: packing outside the vector')
    if (length === 0) return
    elementReader(source, length, 1)
    const to = this.#kernels.addressOf(new Uint8Array(hostBuffer(span), span.byteOffset, 1)) + offset * 4
    const piece = this.#copy(source, source.offset, (length - 1) * source.strideN + 1)
    this.#kernels.packVector(to, Float64Array.from([length, ...piece.numbers]), piece.bytes, piece.scales)
  }

  /** Copies elements [first, first + count) and the scales; the numbers say where they now are. */
  #copy(source: PackSource, first: number, count: number): { numbers: number[]; bytes: number; scales: number } {
    const { dtype, strideN, strideK, scales: s } = source
    // With scales, rows and columns of the tensor are found from an element's index: the copy starts at a row of blocks.
    const blockRow = s ? Math.floor(first / s.sourceColumns / s.blockRows) : 0
    const start = s ? blockRow * s.blockRows * s.sourceColumns : first
    const size = BYTES_OF[dtype]
    const length = (first - start + count) * size
    this.#reserve(length)
    const { buffer } = this.#kernels.node.memory
    new Uint8Array(buffer, this.#bytes, length).set(source.bytes.subarray(start * size, start * size + length))
    const numbers = [DTYPE[dtype], first - start, strideN, strideK]
    if (!s) return { numbers: [...numbers, 0, 0, 0, 0], bytes: this.#bytes, scales: 0 }
    return {
      numbers: [...numbers, s.blockRows, s.blockCols, s.columns, s.sourceColumns],
      bytes: this.#bytes,
      scales: this.#scalesOf(s.values) + blockRow * s.columns * 4,
    }
  }

  #reserve(bytes: number): void {
    if (bytes <= this.#room) return
    // With a quarter more, since what is outgrown is not given back.
    this.#room = Math.max(Math.ceil(bytes * 1.25), this.#piece)
    this.#bytes = this.#kernels.take(this.#room)
  }

  /** Address of a copy of a tensor's scales: few beside its elements. */
  #scalesOf(values: Float32Array): number {
    if (values.length > this.#scaleRoom) {
      this.#scaleRoom = values.length
      this.#scales = this.#kernels.take(values.length * 4)
    }
    new Float32Array(this.#kernels.node.memory.buffer, this.#scales, values.length).set(values)
    return this.#scales
  }
}
