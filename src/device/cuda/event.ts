// Events of a stream: "what was queued before has finished". Waiting is a step that asks the driver again and again, so a
// kernel that never ends leaves the rank able to notice that the node gave up.
import type { Step, Wait } from '../../runtime/wait.js'
import type { CudaContext } from './context.js'
import { RESULT } from './driver.js'
import type { CudaEvent, CudaStream } from './types.js'

const DISABLE_TIMING = 2
/** In a capture the record becomes a node of the graph, and the event is recorded anew by every launch. */
const RECORD_EXTERNAL = 1

/** No word announces a device, so a rank that went to sleep looks again after this long, in milliseconds. */
const LOOK_AGAIN_MS = 0.05

/** A word that never changes: sleeping on it is sleeping for a time. */
const NEVER = new Int32Array(new SharedArrayBuffer(4))

export class DriverEvent implements CudaEvent {
  readonly handle: number
  readonly #context: CudaContext
  readonly #wait: Wait

  constructor(context: CudaContext, timing = false) {
    this.#context = context
    this.handle = context.driver.get('cuEventCreate', timing ? 0 : DISABLE_TIMING)
    this.#wait = {
      ready: () => this.done,
      words: NEVER,
      index: 0,
      sliceMs: LOOK_AGAIN_MS,
      describe: () => `work on ${context.device}`,
      peer: -1,
    }
  }

  /** @throws CudaError SY_CUDA_CALL when something queued before the event went wrong */
  get done(): boolean {
    const result = this.#context.driver.queryEventRaw(this.handle)
    if (result !== RESULT.success && result !== RESULT.notReady) this.#context.driver.fail('cuEventQuery', result)
    return result === RESULT.success
  }

  *wait(): Step<void> {
    while (!this.done) yield this.#wait
  }

  synchronize(): void {
    this.#context.driver.call('cuEventSynchronize', this.handle)
  }

  record(stream: CudaStream): void {
    const flags = stream.capturing ? RECORD_EXTERNAL : 0
    this.#context.driver.call('cuEventRecordWithFlags', this.handle, stream.handle, flags)
  }

  elapsedSince(earlier: CudaEvent): number {
    return this.#context.driver.get('cuEventElapsedTime', earlier.handle, this.handle)
  }

  [Symbol.dispose](): void {
    this.#context.driver.release('cuEventDestroy_v2', this.handle)
  }
}
