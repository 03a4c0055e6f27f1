// What an operation on a GPU binds with: kernels by file and name, addresses of its operands, scratch memory, one stream.
import type { MemorySpan } from '../memory.js'
import { elementBytes, type Operand } from '../ops.js'
import { CompileCache } from './compile-cache.js'
import { KernelCompiler } from './compiler.js'
import type { CudaContext } from './context.js'
import { CublasLt } from './cublaslt.js'
import { HostRegistry } from './host-memory.js'
import { DeviceArenaLender } from './memory.js'
import { CudaModule } from './module.js'
import { Nvrtc } from './nvrtc.js'
import { DriverStream } from './stream.js'
import type { CudaBlas, CudaFunction, CudaProperties, CudaStream, KernelOptions, TensorMapSpec } from './types.js'

/**
 * The kernels of one rank on one GPU.
 *
 * @example
 *   // kernels/cuda/norm.cu: extern "C" __global__ void add_bf16(bf16 *out, const bf16 *a, const bf16 *b, int rows, int width, ...)
 *   const add = (d: CudaKernels): Partial<Ops> => ({
 *     add({ out, a, b, width }) {
 *       const args = d.kernel('norm.cu', `add_${out.dtype ?? 'f32'}`).bind(
 *         ['u64', 'u64', 'u64', 'i32', 'i32'],
 *         [d.address(out), d.address(a), d.address(b), 0, width],
 *       )
 *       return rows => {
 *         if (rows === 0) return
 *         args.set(3, rows)
 *         args.launch([rows, 1, 1], 256)
 *       }
 *     },
 *   })
 */
export interface CudaKernels {
  readonly properties: CudaProperties
  readonly stream: CudaStream
  readonly blas: CudaBlas
  /**
   * A kernel of kernels/cuda/`file`, compiled for this GPU or taken from the cache. Asking again costs a look-up.
   * @throws CudaError SY_CUDA_COMPILE with the compiler's text, SY_CUDA_NO_KERNEL when the file has no such function
   */
  kernel(file: string, name: string, options?: KernelOptions): CudaFunction
  /** Where a span lies for the GPU: device memory as it is; host memory is registered on first use. */
  addressOf(span: MemorySpan): number
  /** Where the host itself finds a span of its memory, pinned from now on: the host's side of `upload` and `download`. */
  hostAddressOf(span: MemorySpan): number
  /** Where an operand's first element lies. */
  address(operand: Operand): number
  /** Scratch of this stream, zeroed when it is made; operations that ask with the same purpose share it. */
  workspace(bytes: number, purpose: string): number
  /** 128 bytes for an argument of type 'tensorMap'. */
  tensorMap(spec: TensorMapSpec): Uint8Array
}

/** The kernels of one thread: it owns stream, modules, scratch and registrations. */
export class StreamKernels implements CudaKernels, Disposable {
  readonly stream: CudaStream
  readonly #context: CudaContext
  readonly #beforeLoad: () => void
  readonly #hosts: HostRegistry
  readonly #scratch: DeviceArenaLender
  readonly #workspaces = new Map<string, { bytes: number; address: number }>()
  readonly #modules = new Map<string, CudaModule>()
  readonly #functions = new Map<string, CudaFunction>()
  #compiler: KernelCompiler | null = null
  #blas: CublasLt | null = null

  /** @param beforeLoad called before a module is compiled or loaded; may throw */
  constructor(context: CudaContext, beforeLoad: () => void = () => {}) {
    this.#context = context
    this.#beforeLoad = beforeLoad
    this.stream = new DriverStream(context)
    this.#hosts = new HostRegistry(context)
    this.#scratch = new DeviceArenaLender(context)
  }

  get properties(): CudaProperties {
    return this.#context.properties
  }

  get blas(): CudaBlas {
    this.#blas ??= new CublasLt(this.#context, this.stream)
    return this.#blas
  }

  kernel(file: string, name: string, options: KernelOptions = {}): CudaFunction {
    const variant = `${file} ${JSON.stringify(options.defines ?? {})}`
    const key = `${variant} ${name}`
    const known = this.#functions.get(key)
    if (known !== undefined) return known
    let module = this.#modules.get(variant)
    if (module === undefined) {
      this.#beforeLoad()
      module = new CudaModule(this.#context, this.#compile(file, options), file)
      this.#modules.set(variant, module)
    }
    const fn = module.function(name, this.stream)
    this.#functions.set(key, fn)
    return fn
  }

  addressOf(span: MemorySpan): number {
    return this.#hosts.addressOf(span)
  }

  hostAddressOf(span: MemorySpan): number {
    return this.#hosts.hostAddressOf(span)
  }

  address(operand: Operand): number {
    return this.addressOf(operand.span) + operand.offset * elementBytes(operand.dtype)
  }

  workspace(bytes: number, purpose: string): number {
    const known = this.#workspaces.get(purpose)
    if (known !== undefined && known.bytes >= bytes) return known.address
    const span = this.#scratch.lend(bytes, purpose)
    const made = { bytes: span.byteLength, address: this.addressOf(span) }
    // Operations bound before keep the smaller one.
    this.#workspaces.set(purpose, made)
    return made.address
  }

  tensorMap(spec: TensorMapSpec): Uint8Array {
    return this.#context.tensorMap(spec)
  }

  /** Nothing of this stream may be running. */
  [Symbol.dispose](): void {
    for (const module of this.#modules.values()) module[Symbol.dispose]()
    this.#blas?.[Symbol.dispose]()
    this.#scratch[Symbol.dispose]()
    this.#hosts[Symbol.dispose]()
    this.stream[Symbol.dispose]()
  }

  #compile(file: string, options: KernelOptions): Uint8Array {
    const { libraries, properties } = this.#context
    this.#compiler ??= new KernelCompiler(new Nvrtc(libraries.nvrtc), properties.capability, new CompileCache())
    return this.#compiler.compile(file, options)
  }
}
