// Bytes of the host on their way to a GPU: copied into one pinned buffer while the GPU's copy engine empties the other. The driver
// does the same with memory that is not pinned, faster where there is much of it, but waits at the end of each copy: so pieces that are
// larger than a buffer are left to it, and the many small ones, of experts, are not.
// Invariant: when `upload` returns, its source may change or go away; the copies themselves follow in the order of a stream.
import { alignUp } from '../memory.js'
import type { CudaContext } from './context.js'
import { HostRegistry } from './host-memory.js'
import type { CudaEvent, CudaStream } from './types.js'

/** Of each of the two: large enough that a copy's start costs nothing, small enough that the first begins soon. */
const BUFFER_BYTES = 16 << 20
const BUFFERS = 2
/** Every piece begins on a line of the host's caches. */
const LINE_BYTES = 64

/** What takes bytes out of pinned buffers, later than it is told to. */
export interface CopyQueue {
  /** Queues a copy of `bytes` bytes at `from` of a buffer to an address. */
  copy(buffer: number, from: number, bytes: number, to: number): void
  /** Remembers what has been queued out of a buffer until now. */
  mark(buffer: number): void
  /** Returns when what was marked last has left the buffer. */
  wait(buffer: number): void
}

/** Which bytes go through which buffer, and when a buffer may be written again. */
export class StagedUploads {
  readonly #buffers: readonly Buffer[]
  readonly #queue: CopyQueue
  readonly #marked = new Set<number>()
  #current = 0
  #used = 0

  /** @param buffers at least two, of any size above 0 */
  constructor(buffers: readonly SharedArrayBuffer[], queue: CopyQueue) {
    this.#buffers = buffers.map(buffer => Buffer.from(buffer))
    this.#queue = queue
  }

  upload(to: number, { buffer, byteOffset, byteLength }: ArrayBufferView): void {
    // Copies by Buffer: into shared memory `Uint8Array.set` goes word by word, which takes half as long again.
    const bytes = Buffer.from(buffer, byteOffset, byteLength)
    for (let done = 0; done < byteLength; ) {
      if (this.#used >= this.#buffers[this.#current]!.length) this.#turn()
      const copied = bytes.copy(this.#buffers[this.#current]!, this.#used, done)
      this.#queue.copy(this.#current, this.#used, copied, to + done)
      this.#used = alignUp(this.#used + copied, LINE_BYTES)
      done += copied
    }
  }

  #turn(): void {
    this.#queue.mark(this.#current)
    this.#marked.add(this.#current)
    this.#current = (this.#current + 1) % this.#buffers.length
    this.#used = 0
    if (this.#marked.has(this.#current)) this.#queue.wait(this.#current)
  }
}

/** Uploads on a stream. Pinned memory is taken with the first small one and let go by `release`, after which more may follow. */
export class StreamUploads implements Disposable {
  readonly #context: CudaContext
  readonly #stream: CudaStream
  #pinned: PinnedBuffers | null = null

  constructor(context: CudaContext, stream: CudaStream) {
    this.#context = context
    this.#stream = stream
  }

  /** Queues a copy to the GPU. The source may go away; who reads the target elsewhere than on the stream waits for that. */
  upload(address: number, bytes: ArrayBufferView): void {
    this.#context.makeCurrent()
    if (bytes.byteLength > BUFFER_BYTES) {
      // What is queued may still read the target, or write it.
      this.#stream.synchronize()
      this.#context.upload(address, bytes)
      return
    }
    this.#pinned ??= pin(this.#context, this.#stream)
    this.#pinned.uploads.upload(address, bytes)
  }

  /** Waits for what is on its way. @throws CudaError when something on the stream went wrong; the memory is let go all the same */
  release(): void {
    this.#letGo(() => this.#stream.synchronize())
  }

  /** As `release`, but what went wrong before is not told again. */
  [Symbol.dispose](): void {
    this.#letGo(() => this.#context.driver.release('cuStreamSynchronize', this.#stream.handle))
  }

  #letGo(wait: () => void): void {
    const pinned = this.#pinned
    if (!pinned) return
    this.#pinned = null
    this.#context.makeCurrent()
    try {
      wait()
    } finally {
      pinned.letGo()
    }
  }
}

interface PinnedBuffers {
  readonly uploads: StagedUploads
  /** Nothing may be on its way. */
  letGo(): void
}

/** Buffers of this process that the driver pins, as all memory that both sides see: their pages go back to the system at the end. */
function pin(context: CudaContext, stream: CudaStream): PinnedBuffers {
  const registry = new HostRegistry(context)
  const events: CudaEvent[] = []
  const letGo = () => {
    for (const event of events) event[Symbol.dispose]()
    registry[Symbol.dispose]()
  }
  try {
    const buffers = Array.from({ length: BUFFERS }, () => new SharedArrayBuffer(BUFFER_BYTES))
    const addresses = buffers.map(buffer => registry.register(buffer).host)
    for (const _ of buffers) events.push(stream.record())
    const queue: CopyQueue = {
      copy: (buffer, from, bytes, to) => stream.upload(to, addresses[buffer]! + from, bytes),
      mark: buffer => events[buffer]!.record(stream),
      wait: buffer => events[buffer]!.synchronize(),
    }
    return { uploads: new StagedUploads(buffers, queue), letGo }
  } catch (error) {
    letGo()
    throw error
  }
}
