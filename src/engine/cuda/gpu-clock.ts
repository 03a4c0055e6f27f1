// How the GPU's clock stands to that of the trace. Compared once for all programs of a rank, before the first traced step: later
// the stamps of a step that is still on its way would lie where the clock is read to.
import type { CudaKernels } from '../../device/cuda/kernels.js'
import type { TraceRecorder } from '../../trace/index.js'

/** Tries of reading both clocks at once; the quickest is kept. */
const TRIES = 8
const STAMP_BYTES = 8

/** Pinned memory that stamps are copied to. */
export interface PinnedStamps {
  /** For the host's side of copies. */
  readonly host: number
  readonly values: BigUint64Array
}

export class GpuClock {
  readonly #kernels: CudaKernels
  readonly #trace: TraceRecorder
  readonly #pinned: PinnedStamps
  #offset = Number.NaN

  /** @param pinned where the clock is read to: no traced step may be on its way there at the first `compare` */
  constructor(kernels: CudaKernels, trace: TraceRecorder, pinned: PinnedStamps) {
    this.#kernels = kernels
    this.#trace = trace
    this.#pinned = pinned
  }

  /** Milliseconds of the trace's clock less those of the GPU's; NaN until they were compared. */
  get offset(): number {
    return this.#offset
  }

  /** The first time: waits for the stream, a few times some ten microseconds. */
  compare(): void {
    if (!Number.isNaN(this.#offset)) return
    const { stream } = this.#kernels
    const { host, values } = this.#pinned
    const address = this.#kernels.workspace(STAMP_BYTES, 'time of the GPU')
    const stamp = this.#kernels.kernel('inputs.cu', 'stamp').bind(['u64', 'i32'], [address, 0])
    let best = Number.POSITIVE_INFINITY
    stream.synchronize()
    for (let i = 0; i < TRIES; i++) {
      const before = this.#trace.now()
      stamp.launch([1, 1, 1], 1)
      stream.download(host, address, STAMP_BYTES)
      stream.synchronize()
      const after = this.#trace.now()
      if (after - before >= best) continue
      best = after - before
      this.#offset = (before + after) / 2 - Number(values[0]!) / 1e6
    }
  }
}
