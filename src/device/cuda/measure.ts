// Time on the device: between events on a stream, so that neither launches nor the host's clock are in it.
import type { CudaContext } from './context.js'
import { DriverEvent } from './event.js'
import type { CudaEvent, CudaStream } from './types.js'

export interface DeviceTiming {
  /** Microseconds of one run. */
  readonly medianUs: number
  readonly minUs: number
  readonly maxUs: number
  readonly runs: number
}

export interface TimingOptions {
  /** Runs before the clock starts. */
  readonly warmUp?: number
  /** Queued before each run and not timed: clears the L2 cache, restores an operand. */
  readonly between?: () => void
  /** Runs of `queue` between two events; the time is divided by it. For work of a few microseconds. */
  readonly inner?: number
}

/**
 * Queues `queue` n times with an event on either side of each and returns the times between them.
 * @example timeOnDevice(context, kernels.stream, 20, () => gemm(rows), { between: clearL2 })
 */
export function timeOnDevice(
  context: CudaContext,
  stream: CudaStream,
  n: number,
  queue: () => void,
  { warmUp = 3, between = () => {}, inner = 1 }: TimingOptions = {},
): DeviceTiming {
  for (let i = 0; i < warmUp; i++) queue()
  stream.synchronize()
  const events: [CudaEvent, CudaEvent][] = Array.from({ length: n }, () => [
    new DriverEvent(context, true),
    new DriverEvent(context, true),
  ])
  for (const [start, end] of events) {
    between()
    start.record(stream)
    for (let i = 0; i < inner; i++) queue()
    end.record(stream)
  }
  stream.synchronize()
  const times = events.map(([start, end]) => (end.elapsedSince(start) * 1000) / inner).sort((a, b) => a - b)
  for (const event of events.flat()) event[Symbol.dispose]()
  return { medianUs: medianOf(times), minUs: times[0]!, maxUs: times.at(-1)!, runs: n }
}

/** @param sorted ascending, not empty */
export function medianOf(sorted: readonly number[]): number {
  const middle = sorted.length / 2
  return (sorted[Math.floor(middle)]! + sorted[Math.ceil(middle) - 1]!) / 2
}

/** Points in the work of a stream whose times are read later, on the host's clock: for traces. */
export class DeviceTimeline implements Disposable {
  readonly #stream: CudaStream
  readonly #origin: CudaEvent
  readonly #originMs: number
  readonly #marks: CudaEvent[]
  #next = 0

  /** @param now the host's clock in milliseconds; read while the stream is empty, so that both clocks meet */
  constructor(context: CudaContext, stream: CudaStream, capacity: number, now: () => number) {
    this.#stream = stream
    this.#marks = Array.from({ length: capacity }, () => new DriverEvent(context, true))
    this.#origin = new DriverEvent(context, true)
    stream.synchronize()
    this.#origin.record(stream)
    stream.synchronize()
    this.#originMs = now()
  }

  /** Marks the end of what is queued now. @returns the mark's number, or -1 when all are taken */
  mark(): number {
    if (this.#next === this.#marks.length) return -1
    this.#marks[this.#next]!.record(this.#stream)
    return this.#next++
  }

  /** When the work before a mark ended, in milliseconds of the host's clock. Its work must have finished. */
  timeOf(mark: number): number {
    return this.#originMs + this.#marks[mark]!.elapsedSince(this.#origin)
  }

  /** All marks are free again. */
  reset(): void {
    this.#next = 0
  }

  [Symbol.dispose](): void {
    this.#origin[Symbol.dispose]()
    for (const event of this.#marks) event[Symbol.dispose]()
  }
}
