// What benchmarks of kernels on a GPU share: memory with random bf16, times, the limit beside each figure, and whether results
// were right in the same run.
import type { MemorySpan } from '../../memory.js'
import type { PackedMatrix } from '../../ops.js'
import { CudaContext } from '../context.js'
import { StreamKernels } from '../kernels.js'
import { medianOf, timeOnDevice, withEventPairs } from '../measure.js'
import { DeviceArenaLender } from '../memory.js'

/** What the limits are computed from: measured on one H200 with torch 2.11, copying memory and multiplying 8192³ in bf16. */
export const LIMITS = { bytesPerSecond: 4.1e12, flopPerSecond: 804e12 } as const

export interface KernelFigure {
  readonly kernel: string
  readonly shape: string
  readonly medianUs: number
  readonly minUs: number
  /** Bytes that must cross the memory bus once, and operations: the longer of the two times is the limit. */
  readonly bytes: number
  readonly flop: number
  readonly limitUs: number
  readonly limit: 'memory' | 'tensor cores'
  /** Largest |difference| / bound of the results checked in this run; above 1 is wrong. Null where nothing was compared. */
  readonly worst: number | null
}

/** Pure: a figure with its limit. */
export function figure(
  kernel: string,
  shape: string,
  time: { readonly medianUs: number; readonly minUs: number },
  { bytes, flop }: { readonly bytes: number; readonly flop: number },
  worst: number | null,
): KernelFigure {
  const memoryUs = (bytes / LIMITS.bytesPerSecond) * 1e6
  const flopUs = (flop / LIMITS.flopPerSecond) * 1e6
  const limit = memoryUs >= flopUs ? 'memory' : 'tensor cores'
  const { medianUs, minUs } = time
  return { kernel, shape, medianUs, minUs, bytes, flop, limitUs: Math.max(memoryUs, flopUs), limit, worst }
}

/** A set of figures that can be asked for by name. */
export interface KernelBench {
  readonly name: string
  readonly run: (b: BenchDevice) => Iterable<KernelFigure>
}

/** A GPU with memory for operands. All memory is given back between benches. */
export class BenchDevice implements Disposable {
  readonly context: CudaContext
  readonly kernels: StreamKernels
  readonly repetitions: number
  #lender: DeviceArenaLender
  #seed = 1

  constructor(ordinal: number, repetitions: number) {
    this.context = new CudaContext(ordinal)
    this.kernels = new StreamKernels(this.context)
    this.repetitions = repetitions
    this.#lender = new DeviceArenaLender(this.context)
  }

  lend(bytes: number): MemorySpan {
    return this.#lender.lend(bytes, 'a benchmark')
  }

  /** Memory that holds these numbers. @returns its address */
  put(data: Int32Array | Float32Array | Uint16Array): number {
    const address = this.kernels.addressOf(this.lend(data.byteLength))
    this.context.upload(address, data)
    return address
  }

  /** Random bf16, uniform in (-scale, scale). */
  random(elements: number, scale = 1): MemorySpan {
    const span = this.lend(elements * 2)
    const fill = this.kernels.kernel('bench.cu', 'bench_fill')
    fill
      .bind(['u64', 'u64', 'u32', 'f32'], [this.kernels.addressOf(span), elements, this.#seed++, scale])
      .launch([this.kernels.properties.sms * 8, 1, 1], 256)
    return span
  }

  matrix(n: number, k: number, count: number): PackedMatrix {
    return { kind: 'bf16', n, k, count, strideBytes: n * k * 2, span: this.random(n * k * count, 1) }
  }

  /** Times of `queue` on the device. @param inner runs between two events, for work of a few microseconds */
  time(queue: () => void, inner = 1): { medianUs: number; minUs: number } {
    return timeOnDevice(this.context, this.kernels.stream, this.repetitions, queue, { inner })
  }

  /**
   * As `time` for each of several ways to the same result, which take turns: a GPU that gets warm slows down, and whoever came last would
   * look slow.
   */
  timeInTurns(queues: readonly (() => void)[]): { medianUs: number; minUs: number }[] {
    const { context, repetitions } = this
    const { stream } = this.kernels
    for (const queue of queues) queue()
    return withEventPairs(context, repetitions * queues.length, pairs => {
      pairs.forEach(([begin, end], i) => {
        begin.record(stream)
        queues[i % queues.length]!()
        end.record(stream)
      })
      stream.synchronize()
      return queues.map((_, q) => {
        const mine = pairs.filter((_, i) => i % queues.length === q)
        const times = mine.map(([begin, end]) => end.elapsedSince(begin) * 1000).sort((a, b) => a - b)
        return { medianUs: medianOf(times), minUs: times[0]! }
      })
    })
  }

  /** As `time`, each run being a graph that runs all of `queues` once: launches cost no time between them. Time of one. */
  timeInGraph(queues: readonly (() => void)[]): { medianUs: number; minUs: number } {
    for (const queue of queues) queue()
    using graph = this.kernels.stream.capture(() => {
      for (const queue of queues) queue()
    })
    const { medianUs, minUs } = timeOnDevice(this.context, this.kernels.stream, this.repetitions, () => graph.launch())
    return { medianUs: medianUs / queues.length, minUs: minUs / queues.length }
  }

  /** Gives all operands back. Nothing may be running. */
  release(): void {
    this.kernels.stream.synchronize()
    this.#lender[Symbol.dispose]()
    this.#lender = new DeviceArenaLender(this.context)
  }

  [Symbol.dispose](): void {
    this.#lender[Symbol.dispose]()
    this.kernels[Symbol.dispose]()
    this.context[Symbol.dispose]()
  }
}
