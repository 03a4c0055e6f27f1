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
  return withEventPairs(context, n, pairs => {
    for (const [start, end] of pairs) {
      between()
      start.record(stream)
      for (let i = 0; i < inner; i++) queue()
      end.record(stream)
    }
    stream.synchronize()
    const times = pairs.map(([start, end]) => (end.elapsedSince(start) * 1000) / inner).sort((a, b) => a - b)
    return { medianUs: medianOf(times), minUs: times[0]!, maxUs: times.at(-1)!, runs: n }
  })
}

/** Lends `count` pairs of events that measure time, and lets them go whatever `use` does. */
export function withEventPairs<T>(
  context: CudaContext,
  count: number,
  use: (pairs: readonly (readonly [CudaEvent, CudaEvent])[]) => T,
): T {
  const events: CudaEvent[] = []
  try {
    while (events.length < 2 * count) events.push(new DriverEvent(context, true))
    return use(Array.from({ length: count }, (_, i) => [events[2 * i]!, events[2 * i + 1]!]))
  } finally {
    for (const event of events) event[Symbol.dispose]()
  }
}

/** @param sorted ascending, not empty */
export function medianOf(sorted: readonly number[]): number {
  const middle = sorted.length / 2
  return (sorted[Math.floor(middle)]! + sorted[Math.ceil(middle) - 1]!) / 2
}
