// A stream of one GPU, of its own (it does not wait for the default stream), and graphs captured from it.
import type { CudaContext } from './context.js'
import { DriverEvent } from './event.js'
import { DriverGraph } from './graph.js'
import type { CudaEvent, CudaGraph, CudaStream } from './types.js'

const NON_BLOCKING = 1
/** CU_STREAM_CAPTURE_MODE_RELAXED: kernels that the driver loads late, and other threads' allocations, do not break a capture. */
const CAPTURE_RELAXED = 2

export class DriverStream implements CudaStream {
  readonly handle: number
  readonly #context: CudaContext
  #capturing = false

  constructor(context: CudaContext) {
    this.#context = context
    context.makeCurrent()
    this.handle = context.driver.get('cuStreamCreateWithPriority', NON_BLOCKING, 0)
  }

  get capturing(): boolean {
    return this.#capturing
  }

  synchronize(): void {
    this.#context.driver.call('cuStreamSynchronize', this.handle)
  }

  record(options: { timing?: boolean } = {}): CudaEvent {
    const event = new DriverEvent(this.#context, options.timing)
    event.record(this)
    return event
  }

  waitFor(event: CudaEvent): void {
    this.#context.driver.call('cuStreamWaitEvent', this.handle, event.handle, 0)
  }

  upload(to: number, hostAddress: number, bytes: number): void {
    if (bytes > 0) this.#context.driver.call('cuMemcpyHtoDAsync_v2', to, hostAddress, bytes, this.handle)
  }

  download(hostAddress: number, from: number, bytes: number): void {
    if (bytes > 0) this.#context.driver.call('cuMemcpyDtoHAsync_v2', hostAddress, from, bytes, this.handle)
  }

  copy(to: number, from: number, bytes: number): void {
    if (bytes > 0) this.#context.driver.call('cuMemcpyAsync', to, from, bytes, this.handle)
  }

  fill(address: number, value: number, bytes: number): void {
    if (bytes > 0) this.#context.driver.call('cuMemsetD8Async', address, value, bytes, this.handle)
  }

  capture(queue: () => void): CudaGraph {
    const { driver } = this.#context
    driver.call('cuStreamBeginCapture_v2', this.handle, CAPTURE_RELAXED)
    this.#capturing = true
    const out: (number | null)[] = [null]
    try {
      queue()
    } catch (error) {
      // Ends the capture whatever became of it, so that the stream can be used again.
      this.#capturing = false
      if (driver.ask('cuStreamEndCapture', this.handle, out) === 0) driver.call('cuGraphDestroy', Number(out[0]))
      throw error
    }
    this.#capturing = false
    driver.call('cuStreamEndCapture', this.handle, out)
    return new DriverGraph(this.#context, Number(out[0]), this)
  }

  [Symbol.dispose](): void {
    this.#context.driver.release('cuStreamDestroy_v2', this.handle)
  }
}
