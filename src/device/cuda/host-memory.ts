// Host memory that a GPU can reach: SharedArrayBuffers pinned by the driver ("registered"). Buffers are registered whole
// and once; they are kept alive until they are let go, since the GPU would go on using pages that the host had given away.
import { Unreachable } from '../../config/errors.js'
import { ALIGNMENT, alignUp, hostBuffer, type MemoryLender, type MemorySpan } from '../memory.js'
import type { CudaContext } from './context.js'
import { RESULT } from './driver.js'
import { hostAddress } from './host-address.js'

/** CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP: pinned for every GPU, and reachable by kernels. */
const REGISTER_FLAGS = 3

export class HostRegistry implements Disposable {
  readonly #context: CudaContext
  /** Buffers held, with their address for the GPU and for the host; `own` where this registry pinned it. */
  readonly #buffers = new Map<SharedArrayBuffer, { device: number; host: number; own: boolean }>()

  constructor(context: CudaContext) {
    this.#context = context
  }

  /** Where the GPU finds a span: as it is, or in host memory that is registered now. */
  addressOf({ buffer, byteOffset }: MemorySpan): number {
    if (!(buffer instanceof SharedArrayBuffer)) return buffer.address + byteOffset
    return this.register(buffer).device + byteOffset
  }

  /** The host's own address of a span, for copies. Registers its buffer, so that copies need no staging by the driver. */
  hostAddressOf(span: MemorySpan): number {
    return this.register(hostBuffer(span)).host + span.byteOffset
  }

  /**
   * Pins memory for threads that find it pinned then, until this registry lets it go: one that is ended from outside could let nothing
   * go, and the GPU would keep the pages at addresses where the process has long put other memory.
   */
  pin(buffer: SharedArrayBuffer): void {
    if (!this.register(buffer).own) throw new Unreachable('memory that is pinned for others was pinned before')
  }

  register(buffer: SharedArrayBuffer): { device: number; host: number; own: boolean } {
    const known = this.#buffers.get(buffer)
    if (known !== undefined) return known
    const { driver, libraries } = this.#context
    this.#context.makeCurrent()
    const host = hostAddress(libraries.koffi, new Uint8Array(buffer))
    const result = driver.ask('cuMemHostRegister_v2', host, buffer.byteLength, REGISTER_FLAGS)
    // Another thread of this process may have pinned the same memory before; it then stays that thread's to let go.
    if (result !== RESULT.success && result !== RESULT.alreadyRegistered) driver.fail('cuMemHostRegister_v2', result)
    const device = driver.get('cuMemHostGetDevicePointer_v2', host, 0)
    const entry = { device, host, own: result === RESULT.success }
    this.#buffers.set(buffer, entry)
    return entry
  }

  /** Nothing that uses the memory may be running. */
  [Symbol.dispose](): void {
    this.#context.makeCurrent()
    for (const { host, own } of this.#buffers.values())
      if (own) this.#context.driver.release('cuMemHostUnregister', host)
    this.#buffers.clear()
  }
}

/** Lends host memory out of few large buffers, so that few registrations pin all of it: staging, and operands of tests. */
export class PinnedLender implements MemoryLender {
  readonly #blockBytes: number
  #block = new SharedArrayBuffer(0)
  #used = 0
  #lent = 0

  constructor(blockBytes: number = 16 << 20) {
    this.#blockBytes = blockBytes
  }

  get lent(): number {
    return this.#lent
  }

  lend(bytes: number, _purpose: string): MemorySpan {
    const byteLength = alignUp(Math.max(bytes, ALIGNMENT))
    if (this.#used + byteLength > this.#block.byteLength) {
      this.#block = new SharedArrayBuffer(Math.max(this.#blockBytes, byteLength))
      this.#used = 0
    }
    const span = { buffer: this.#block, byteOffset: this.#used, byteLength }
    this.#used += byteLength
    this.#lent += byteLength
    return span
  }
}
