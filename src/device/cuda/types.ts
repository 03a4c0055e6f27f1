// What code above the CUDA bindings sees: functions that can be launched, a stream, graphs, the memory of a GPU.
// Addresses are plain numbers (a GPU's virtual addresses stay below 2^53) and are valid in every thread of the process.
import type { DeviceEvent } from '../event.js'
import type { MemoryLender, MemorySpan } from '../memory.js'

/** Kinds of launch arguments, as in the kernel's signature: pointer or `long long`, int, unsigned, float, `const __grid_constant__ TensorMap`. */
export type ArgumentType = 'u64' | 'i32' | 'u32' | 'f32' | 'tensorMap'

/** A number, or the 128 bytes of a tensor map. */
export type ArgumentValue = number | Uint8Array

export type Dim3 = readonly [x: number, y: number, z: number]

/** What the driver says about a GPU that kernels and sizing want to know. */
export interface CudaProperties {
  readonly ordinal: number
  readonly name: string
  /** Compute capability, major * 10 + minor: 90 for Hopper. */
  readonly capability: number
  /** Streaming multiprocessors. */
  readonly sms: number
  /** Shared memory that a block may ask for, bytes. */
  readonly sharedBytesPerBlock: number
  readonly sharedBytesPerSm: number
  readonly l2Bytes: number
  /** Memory of the GPU, bytes. */
  readonly memoryBytes: number
}

/** A kernel. Bind its arguments once, launch often. */
export interface CudaFunction {
  readonly name: string
  readonly registers: number
  /** Bytes of local memory a thread uses; above 0 means spills or arrays in memory. */
  readonly localBytes: number
  /**
   * Lays the arguments out once; later `set` changes single ones and `launch` costs one foreign call.
   * @param options.programmatic the launch may begin while the kernel before it ends (programmatic dependent launch, from sm_90 on,
   * else an ordinary launch): the kernel must call wait_for_predecessors() before it touches what earlier kernels wrote
   */
  bind(
    layout: readonly ArgumentType[],
    values: readonly ArgumentValue[],
    options?: { programmatic?: boolean },
  ): LaunchArguments
  /** Blocks of this shape that fit one SM at a time. */
  blocksPerSm(threads: number, sharedBytes?: number): number
}

/** Arguments of one kernel, packed. The driver copies them at launch, so they may be changed right after. */
export interface LaunchArguments {
  /** Changes argument `index`; a number only. */
  set(index: number, value: number): void
  /**
   * Launches on the stream of the kernels it was bound with. Returns when the launch is queued.
   * @param grid blocks
   * @param block threads, along x or in three directions
   * @param sharedBytes dynamic shared memory; above 48 KiB the function is allowed it on first use
   */
  launch(grid: Dim3, block: number | Dim3, sharedBytes?: number): void
}

/** An event on a stream. `wait` is a step that looks again and again; it never blocks in the driver. */
export interface CudaEvent extends DeviceEvent, Disposable {
  /** Puts the event at the end of what is queued now. An event may be recorded again. */
  record(stream: CudaStream): void
  /** Waits in the driver, for start-up, tests and benchmarks. */
  synchronize(): void
  /** Milliseconds between two recorded and finished events that were made with `timing`. */
  elapsedSince(earlier: CudaEvent): number
  /** The driver's handle. */
  readonly handle: number
}

/** Work in order. Everything here only queues, unless it says otherwise. */
export interface CudaStream extends Disposable {
  readonly handle: number
  /** True inside `capture`. */
  readonly capturing: boolean
  /** Waits in the driver until the stream is empty, for start-up, tests and benchmarks; in a step wait for an event. */
  synchronize(): void
  /** A new event at the end of what is queued now. */
  record(options?: { timing?: boolean }): CudaEvent
  /** What is queued later starts after `event`. */
  waitFor(event: CudaEvent): void
  /** Device address from registered host memory, `bytes` long. */
  upload(to: number, hostAddress: number, bytes: number): void
  /** Registered host memory from a device address. */
  download(hostAddress: number, from: number, bytes: number): void
  /** Between device addresses (of peers too, once access is enabled). */
  copy(to: number, from: number, bytes: number): void
  /** Every byte becomes `value`. */
  fill(address: number, value: number, bytes: number): void
  /** Records what `queue` queues on this stream, running nothing, as a graph. Only queue inside: no waits, no allocation. */
  capture(queue: () => void): CudaGraph
}

/** A captured sequence of launches with all their arguments. */
export interface CudaGraph extends Disposable {
  /** Kernels, copies and fills in it. */
  readonly nodes: number
  launch(stream?: CudaStream): void
}

/** Lends memory of one GPU out of an arena that is taken at start. Spans can be posted to workers. */
export interface CudaMemoryLender extends MemoryLender, Disposable {
  lend(bytes: number, purpose: string): MemorySpan
}

/** A matrix operand of a product: row r starts at `address + r * stride * element bytes`. */
export interface CudaMatrix {
  readonly address: number
  readonly dtype: 'f32' | 'bf16'
  /** Elements between rows. */
  readonly stride: number
}

/** y[m, n] (+)= x[m, k] · W[n, k]ᵀ. x and W have one type; y is f32, or bf16 when they are. */
export interface MatmulSpec {
  readonly n: number
  readonly k: number
  readonly x: CudaMatrix
  readonly weight: CudaMatrix
  readonly out: CudaMatrix
  readonly accumulate?: boolean
  /** `count` products of this size at once; elements from one's operands to the next one's. */
  readonly batch?: { readonly count: number; readonly x: number; readonly weight: number; readonly out: number }
}

export interface CudaBlas {
  /** Binds a product; the returned function queues it for `rows` rows. Nothing is queued for 0 rows. May be captured. */
  bind(spec: MatmulSpec): (rows: number) => void
}

/** Shape of a tensor map: what one bulk copy of the tensor memory accelerator moves. Innermost dimension first. */
export interface TensorMapSpec {
  readonly address: number
  readonly dtype: 'bf16' | 'f32' | 'u8'
  /** Elements in each dimension, innermost first; 2 to 5 dimensions. */
  readonly sizes: readonly number[]
  /** Bytes between neighbours of dimension 1 and on; multiples of 16. */
  readonly strides: readonly number[]
  /** Elements a copy moves in each dimension. The innermost times the element size may not exceed the swizzle. */
  readonly box: readonly number[]
  readonly swizzle: 'none' | '32B' | '64B' | '128B'
  readonly l2Promotion?: 'none' | '64B' | '128B' | '256B'
}

/** How a kernel is compiled beyond the device's architecture. */
export interface KernelOptions {
  /** Macros: `{ HEAD_DIM: 128 }` becomes -DHEAD_DIM=128. Each set is a compilation of its own. */
  readonly defines?: Readonly<Record<string, number | string>>
}
