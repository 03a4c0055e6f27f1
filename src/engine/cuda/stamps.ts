// When a GPU was at which operation: a kernel of one thread writes the GPU's clock between operations, also inside captured
// graphs. An operation's time then runs from one stamp to the next; what lies between the steps is time without work.
import type { CudaKernels } from '../../device/cuda/kernels.js'
import type { LaunchArguments } from '../../device/cuda/types.js'
import type { BoundOperation } from '../../program/index.js'
import type { TraceRecorder } from '../../trace/index.js'
import type { GpuClock } from './gpu-clock.js'

const STAMP_BYTES = 8

/** What a traced step needs until it is written down. */
export interface StampedStep {
  readonly step: number
  readonly program: number
  readonly rows: number
}

export class DeviceStamps {
  readonly #kernels: CudaKernels
  readonly #address: number
  readonly #stamp: LaunchArguments
  readonly #operations: readonly BoundOperation[]
  readonly #trace: TraceRecorder
  readonly #clock: GpuClock

  /** @param clock of all programs of the rank */
  constructor(kernels: CudaKernels, operations: readonly BoundOperation[], trace: TraceRecorder, clock: GpuClock) {
    this.#kernels = kernels
    this.#clock = clock
    this.#operations = operations
    this.#trace = trace
    this.#address = kernels.workspace(stampBytes(operations.length), 'time stamps')
    this.#stamp = kernels.kernel('inputs.cu', 'stamp').bind(['u64', 'i32'], [this.#address, 0])
  }

  /** Recording is on: steps are to be stamped. */
  get wanted(): boolean {
    if (this.#trace.active) this.#clock.compare()
    return this.#trace.active
  }

  /** Queues a stamp: `index` operations of the step lie before it. */
  at(index: number): void {
    this.#stamp.set(1, index)
    this.#stamp.launch([1, 1, 1], 1)
  }

  /** Queues the copy of a step's stamps to pinned memory. */
  fetch(host: number): void {
    this.#kernels.stream.download(host, this.#address, stampBytes(this.#operations.length))
  }

  /** Writes a step down. @param stamps nanoseconds of the GPU's clock, as fetched */
  record(stamps: BigUint64Array, { step, program, rows }: StampedStep): void {
    const ms = (index: number): number => Number(stamps[index]!) / 1e6 + this.#clock.offset
    this.#operations.forEach(({ index }, i) => {
      this.#trace.deviceOperation(step, program, index, rows, ms(i), ms(i + 1))
    })
  }
}

/** One more than operations. */
export const stampBytes = (operations: number): number => (operations + 1) * STAMP_BYTES
