// Dense products by cuBLASLt. It thinks in columns: row-major y[m, n] = x[m, k] · W[n, k]ᵀ is, column by column,
// y'[n, m] = W'[k, n]ᵀ · x'[k, m], with the strides between rows as leading dimensions. Sums are in f32; f32 operands are
// multiplied in full f32, never TF32. Enumerators are those of cublasLt.h, cublas_api.h and library_types.h.
import type { LibraryHandle } from 'koffi'
import type { CudaContext } from './context.js'
import { CudaError, isContextLost } from './errors.js'
import { alignmentOf, rowBucket } from './matmul-plan.js'
import { PackedMemory } from './packed-memory.js'
import type { CudaBlas, CudaStream, MatmulSpec } from './types.js'

const HANDLE = 'size_t'
const SIGNATURES = {
  cublasLtCreate: ['_Out_ size_t*'],
  cublasLtDestroy: [HANDLE],
  cublasLtMatmulDescCreate: ['_Out_ size_t*', 'int', 'int'],
  cublasLtMatmulDescSetAttribute: [HANDLE, 'int', HANDLE, 'size_t'],
  cublasLtMatrixLayoutCreate: ['_Out_ size_t*', 'int', 'uint64_t', 'uint64_t', 'int64_t'],
  cublasLtMatrixLayoutSetAttribute: [HANDLE, 'int', HANDLE, 'size_t'],
  cublasLtMatmulPreferenceCreate: ['_Out_ size_t*'],
  cublasLtMatmulPreferenceSetAttribute: [HANDLE, 'int', HANDLE, 'size_t'],
  cublasLtMatmulPreferenceDestroy: [HANDLE],
  cublasLtMatmulAlgoGetHeuristic: [HANDLE, HANDLE, HANDLE, HANDLE, HANDLE, HANDLE, HANDLE, 'int', HANDLE, '_Out_ int*'],
  cublasLtMatmul: [
    HANDLE,
    HANDLE,
    HANDLE,
    HANDLE,
    HANDLE,
    HANDLE,
    HANDLE,
    HANDLE,
    HANDLE,
    HANDLE,
    HANDLE,
    HANDLE,
    HANDLE,
    HANDLE,
    'size_t',
    HANDLE,
  ],
} as const

type Name = keyof typeof SIGNATURES
type Call = (...args: unknown[]) => number

const COMPUTE_F32 = 68
const DATA_TYPE = { f32: 0, bf16: 14 } as const
const ELEMENT_BYTES = { f32: 4, bf16: 2 } as const
const DESC = { transA: 3 } as const
const TRANSPOSE = 1
const LAYOUT = { columns: 3, batchCount: 5, batchStride: 6 } as const
const PREFERENCE = {
  workspaceBytes: 1,
  reductions: 3,
  alignmentA: 5,
  alignmentB: 6,
  alignmentC: 7,
  alignmentD: 8,
} as const
/**
 * How parts of a sum that several blocks make may be put together: in f32, never in the type of the result. Where bf16 is added
 * to, not at all: left free, some results there were off by more than one rounding (cuBLAS 13, H200, one row and 200 rows).
 */
const REDUCE = { never: 0, inComputeType: 2 } as const
/** cublasLtMatmulHeuristicResult_t: 64 bytes of algorithm, workspace size, status, waves, reserve. */
const RESULT_BYTES = 96
const RESULT_STATUS_AT = 72

/** NVIDIA's advice for Hopper (cuBLAS documentation, workspace): 32 MiB. */
const WORKSPACE_BYTES = 32 << 20

export class CublasLt implements CudaBlas, Disposable {
  readonly #context: CudaContext
  readonly #stream: CudaStream
  readonly #call = {} as Record<Name, Call>
  readonly #statusText: (status: number) => string
  readonly #handle: number
  readonly #workspace: number
  /** f32 one and zero: alpha and beta. */
  readonly #scalars: PackedMemory
  /** Chosen algorithms by everything that the choice depends on. */
  readonly #algorithms = new Map<string, PackedMemory>()

  constructor(context: CudaContext, stream: CudaStream, library: LibraryHandle = context.libraries.cublaslt) {
    this.#context = context
    this.#stream = stream
    for (const [name, types] of Object.entries(SIGNATURES))
      this.#call[name as Name] = library.func(name, 'int', [...types])
    this.#statusText = library.func('cublasLtGetStatusName', 'str', ['int'])
    context.makeCurrent()
    this.#handle = this.#get('cublasLtCreate')
    this.#workspace = context.allocate(WORKSPACE_BYTES, "cuBLASLt's workspace")
    this.#scalars = new PackedMemory(context.libraries.koffi, 8)
    this.#scalars.f32(0, 1)
  }

  bind(spec: MatmulSpec): (rows: number) => void {
    const { n, k, x, weight, out, accumulate = false, batch } = spec
    const what = `${n} × ${k}, ${x.dtype} to ${out.dtype}`
    const { koffi } = this.#context.libraries
    const scratch = new PackedMemory(koffi, 8)
    const description = this.#get('cublasLtMatmulDescCreate', COMPUTE_F32, DATA_TYPE.f32)
    scratch.u32(0, TRANSPOSE)
    this.#checked('cublasLtMatmulDescSetAttribute', what, description, DESC.transA, scratch.address, 4)
    const layout = (
      { dtype, stride }: MatmulSpec['x'],
      height: number,
      width: number,
      operand: 'weight' | 'x' | 'out',
    ): number => {
      const made = this.#get('cublasLtMatrixLayoutCreate', DATA_TYPE[dtype], height, width, stride)
      if (batch) {
        scratch.u64(0, batch.count)
        this.#checked('cublasLtMatrixLayoutSetAttribute', what, made, LAYOUT.batchCount, scratch.address, 4)
        scratch.u64(0, batch[operand])
        this.#checked('cublasLtMatrixLayoutSetAttribute', what, made, LAYOUT.batchStride, scratch.address, 8)
      }
      return made
    }
    const a = layout(weight, k, n, 'weight')
    const b = layout(x, k, 1, 'x')
    const c = layout(out, n, 1, 'out')
    const one = this.#scalars.address
    const beta = accumulate ? one : one + 4
    const handles = { description, a, b, c }
    const kept = new Map<number, PackedMemory>()
    let columns = 1
    const setColumns = (rows: number): void => {
      if (rows === columns) return
      scratch.u64(0, rows)
      this.#checked('cublasLtMatrixLayoutSetAttribute', what, b, LAYOUT.columns, scratch.address, 8)
      this.#checked('cublasLtMatrixLayoutSetAttribute', what, c, LAYOUT.columns, scratch.address, 8)
      columns = rows
    }
    return rows => {
      if (rows === 0) return
      const bucket = rowBucket(rows)
      let algorithm = kept.get(bucket)
      if (algorithm === undefined) {
        // Asked for the most rows of the bucket: scratch that suffices there suffices for fewer.
        setColumns(bucket)
        algorithm = this.#algorithmFor(spec, bucket, handles, what)
        kept.set(bucket, algorithm)
      }
      setColumns(rows)
      const status = this.#call.cublasLtMatmul(
        this.#handle,
        description,
        one,
        weight.address,
        a,
        x.address,
        b,
        beta,
        out.address,
        c,
        out.address,
        c,
        algorithm.address,
        this.#workspace,
        WORKSPACE_BYTES,
        this.#stream.handle,
      )
      if (status !== 0) this.#fail('cublasLtMatmul', status, `${what}, ${rows} rows`)
    }
  }

  /** The best algorithm by the library's own estimate, for the sizes that the layouts say. */
  #algorithmFor(
    { n, k, x, weight, out, accumulate = false, batch }: MatmulSpec,
    bucket: number,
    layouts: { description: number; a: number; b: number; c: number },
    what: string,
  ): PackedMemory {
    const alignment = ({ address, stride, dtype }: MatmulSpec['x'], between = 0): number => {
      const bytes = ELEMENT_BYTES[dtype]
      return Math.min(alignmentOf(address, stride * bytes), alignmentOf(address, between * bytes))
    }
    const alignments = [alignment(weight, batch?.weight), alignment(x, batch?.x), alignment(out, batch?.out)]
    const apart = batch ? [batch.count, batch.weight, batch.x, batch.out] : []
    const strides = [weight.stride, x.stride, out.stride, ...apart]
    const key = [bucket, n, k, ...strides, x.dtype, weight.dtype, out.dtype, accumulate, ...alignments].join()
    const known = this.#algorithms.get(key)
    if (known !== undefined) return known
    const { koffi } = this.#context.libraries
    const preference = this.#get('cublasLtMatmulPreferenceCreate')
    const scratch = new PackedMemory(koffi, 8)
    const prefer = (attribute: number, value: number, bytes: number): void => {
      scratch.u64(0, value)
      this.#checked('cublasLtMatmulPreferenceSetAttribute', what, preference, attribute, scratch.address, bytes)
    }
    prefer(PREFERENCE.workspaceBytes, WORKSPACE_BYTES, 8)
    prefer(PREFERENCE.reductions, accumulate && out.dtype === 'bf16' ? REDUCE.never : REDUCE.inComputeType, 4)
    prefer(PREFERENCE.alignmentA, alignments[0]!, 4)
    prefer(PREFERENCE.alignmentB, alignments[1]!, 4)
    prefer(PREFERENCE.alignmentC, alignments[2]!, 4)
    prefer(PREFERENCE.alignmentD, alignments[2]!, 4)
    const result = new PackedMemory(koffi, RESULT_BYTES)
    const found: (number | null)[] = [null]
    const { description, a, b, c } = layouts
    const answer = [this.#handle, description, a, b, c, c, preference, 1, result.address, found]
    const status = this.#call.cublasLtMatmulAlgoGetHeuristic(...answer)
    this.#checked('cublasLtMatmulPreferenceDestroy', what, preference)
    if (status !== 0) this.#fail('cublasLtMatmulAlgoGetHeuristic', status, what)
    const own = result.view.getInt32(RESULT_STATUS_AT, true)
    if (found[0] === 0 || own !== 0) this.#fail('cublasLtMatmulAlgoGetHeuristic', own === 0 ? 15 : own, what)
    this.#algorithms.set(key, result)
    return result
  }

  /** Nothing it queued may be running. After a kernel went wrong there is nothing to give back, so the status is not looked at. */
  [Symbol.dispose](): void {
    this.#context.release(this.#workspace)
    this.#call.cublasLtDestroy(this.#handle)
  }

  #get(name: Name, ...args: unknown[]): number {
    const out: (number | null)[] = [null]
    this.#checked(name, 'its set-up', out, ...args)
    return Number(out[0])
  }

  #checked(name: Name, what: string, ...args: unknown[]): void {
    const status = this.#call[name](...args)
    if (status !== 0) this.#fail(name, status, what)
  }

  #fail(call: string, number: number, what: string): never {
    // A kernel that was queued before went wrong: the library is not to blame, it only meets it first.
    const { driver } = this.#context
    const lost = driver.ask('cuStreamQuery', this.#stream.handle)
    if (isContextLost(lost)) driver.fail(call, lost)
    throw new CudaError('SY_CUDA_BLAS', { call, number, name: this.#statusText(number), what })
  }
}
