// Packing on a GPU: bytes are uploaded as they lie in the file and converted there into row-major [n, k]. What needs no
// conversion goes straight to its place. Uploads and conversions follow each other on one stream: conversions take little beside the
// bus, and so what is uploaded next cannot overtake what is still read.
// Invariant: when a call returns, its source may be unmapped; a target is there once the stream is empty, host memory at once.
import { Unreachable } from '../../config/errors.js'
import { BYTES_OF, elementReader } from '../cpu/number-formats.js'
import { alignUp, f32View, type MemorySpan } from '../memory.js'
import {
  type DrawnElements,
  elementBytes,
  type PackedMatrix,
  type Packer,
  type PackSource,
  type ParameterVector,
  type WeightKind,
} from '../ops.js'
import type { CudaContext } from './context.js'
import type { CudaKernels } from './kernels.js'
import { vectorWidth } from './ops/operands.js'
import { StreamUploads } from './staged-upload.js'

/** Bytes of a source converted at once. */
const STAGE_BYTES = 64 << 20
const THREADS = 256
const BLOCKS = 4096
const DTYPE = { F32: 0, F16: 1, BF16: 2, F8_E4M3: 3 } as const
const KIND_OF = { F32: 'f32', BF16: 'bf16' } as const

/** Rows [first, first + rows) and inputs [firstInput, firstInput + inputs) of what is packed: one upload. */
export interface PackChunk {
  readonly first: number
  readonly rows: number
  readonly firstInput: number
  readonly inputs: number
  /** Elements of the source that the upload begins and ends with. */
  readonly from: number
  readonly to: number
}

/** Cuts a source along its longer stride into pieces that span `most` elements at most, one row or input at least. Pure. */
export function chunksOf(
  n: number,
  k: number,
  source: Pick<PackSource, 'offset' | 'strideN' | 'strideK'>,
  most: number,
): PackChunk[] {
  const { offset, strideN, strideK } = source
  const byRows = strideN >= strideK
  const [count, step, inner] = byRows ? [n, strideN, (k - 1) * strideK] : [k, strideK, (n - 1) * strideN]
  const atOnce = step === 0 ? count : Math.max(1, Math.floor((most - 1 - inner) / step) + 1)
  const chunks: PackChunk[] = []
  for (let first = 0; first < count; first += atOnce) {
    const size = Math.min(atOnce, count - first)
    const from = offset + first * step
    const span = { from, to: from + (size - 1) * step + inner + 1 }
    chunks.push(
      byRows
        ? { first, rows: size, firstInput: 0, inputs: k, ...span }
        : { first: 0, rows: n, firstInput: first, inputs: size, ...span },
    )
  }
  return chunks
}

export class CudaPacker implements Packer, Disposable {
  readonly keepsBf16 = true
  readonly #context: CudaContext
  readonly #kernels: CudaKernels
  readonly #uploads: StreamUploads
  #table: Float32Array | null = null
  #tableAddress = 0

  constructor(context: CudaContext, kernels: CudaKernels) {
    this.#context = context
    this.#kernels = kernels
    this.#uploads = new StreamUploads(context, kernels.stream)
  }

  /** Waits until everything packed is in its place, and lets go of the pinned memory it went through. */
  settle(): void {
    this.#context.makeCurrent()
    this.#kernels.stream.synchronize()
    this.#uploads.release()
  }

  [Symbol.dispose](): void {
    this.#uploads[Symbol.dispose]()
  }

  packedBytes(kind: WeightKind, n: number, k: number): number {
    return alignUp(n * k * elementBytes(kind))
  }

  packMatrix(target: PackedMatrix, index: number, rowStart: number, n: number, source: PackSource): void {
    const place = this.#place(target, index, rowStart, n)
    if (n === 0) return
    const { k, kind } = target
    elementReader(source, n, k) // refuses what reaches beyond its source
    const { dtype, bytes, strideN, strideK } = source
    const straight = strideK === 1 && (strideN === k || n === 1) && !source.scales
    if (straight && isDevice(target.span) && dtype in KIND_OF && KIND_OF[dtype as keyof typeof KIND_OF] === kind) {
      const size = BYTES_OF[dtype]
      this.#uploads.upload(place, bytes.subarray(source.offset * size, (source.offset + n * k) * size))
      return
    }
    this.#convert(place, target, n, source)
    if (!isDevice(target.span)) this.#kernels.stream.synchronize()
  }

  packVector(target: ParameterVector, offset: number, length: number, source: PackSource): void {
    if (offset < 0 || offset + length > target.length) throw new Unreachable('packVector: packing outside the vector')
    if (length === 0) return
    const at = elementReader(source, length, 1)
    const values = Float32Array.from({ length }, (_, i) => at(source.offset + i * source.strideN))
    if (isDevice(target.span)) this.#context.upload(this.#kernels.addressOf(target.span) + offset * 4, values)
    else f32View(target.span).set(values, offset)
  }

  vectorValues(vector: ParameterVector): Float32Array {
    if (!isDevice(vector.span)) return f32View(vector.span).subarray(0, vector.length)
    const values = new Float32Array(vector.length)
    this.#kernels.stream.synchronize()
    this.#context.download(values, this.#kernels.addressOf(vector.span))
    return values
  }

  drawMatrix(target: PackedMatrix, index: number, rowStart: number, n: number, drawn: DrawnElements): void {
    const place = this.#place(target, index, rowStart, n)
    if (n === 0) return
    if (this.#table !== drawn.table) {
      this.#kernels.stream.synchronize()
      this.#tableAddress = this.#kernels.workspace(drawn.table.byteLength, 'dummy weights')
      this.#context.upload(this.#tableAddress, drawn.table)
      this.#table = drawn.table
    }
    const { k, kind } = target
    const v = vectorWidth([8, 1], k, [{ address: place, stride: k, bytes: elementBytes(kind) }])
    this.#kernels
      .kernel('synth.cu', `draw_${kind}_${v}`)
      .bind(
        ['u64', 'u64', 'u64', 'u64', 'u64', 'u64', 'u64', 'u32'],
        [place, this.#tableAddress, n, k, drawn.offset, drawn.strideN, drawn.strideK, drawn.key],
      )
      .launch([BLOCKS, 1, 1], THREADS)
  }

  /** Where row `rowStart` of matrix `index` lies. */
  #place(target: PackedMatrix, index: number, rowStart: number, n: number): number {
    if (index < 0 || index >= target.count || rowStart < 0 || rowStart + n > target.n)
      throw new Unreachable('packMatrix: packing outside the matrix')
    const bytes = elementBytes(target.kind)
    return this.#kernels.addressOf(target.span) + index * target.strideBytes + rowStart * target.k * bytes
  }

  #convert(place: number, { k, kind }: PackedMatrix, n: number, source: PackSource): void {
    const { dtype, bytes, strideN, strideK, scales } = source
    const size = BYTES_OF[dtype]
    const kernels = this.#kernels
    const chunks = chunksOf(n, k, source, STAGE_BYTES / size)
    const largest = chunks.reduce((most, c) => Math.max(most, c.to - c.from), 0)
    const stage = kernels.workspace(Math.max(STAGE_BYTES, largest * size), 'packing')
    const scaleStage = scales ? kernels.workspace(Math.max(1 << 20, scales.values.byteLength), 'packing scales') : 0
    if (scales) this.#uploads.upload(scaleStage, scales.values)
    for (const c of chunks) {
      this.#uploads.upload(stage, bytes.subarray(c.from * size, c.to * size))
      kernels
        .kernel('pack.cu', `pack_${kind}`)
        .bind(
          [
            ...(['u64', 'u64', 'u64', 'u64', 'u64', 'u64', 'u64', 'u64', 'u64', 'u64'] as const),
            ...(['i32', 'i32', 'i32', 'i32', 'u64', 'u64'] as const),
          ],
          [
            ...[place + (c.first * k + c.firstInput) * elementBytes(kind), stage, scaleStage, c.rows, c.inputs],
            ...[c.from, c.from, strideN, strideK, k, DTYPE[dtype], strideN < strideK ? 1 : 0],
            ...[scales?.blockRows ?? 1, scales?.blockCols ?? 1, scales?.columns ?? 1, scales?.sourceColumns ?? 1],
          ],
        )
        .launch([BLOCKS, 1, 1], THREADS)
    }
  }
}

const isDevice = ({ buffer }: MemorySpan): boolean => !(buffer instanceof SharedArrayBuffer)
