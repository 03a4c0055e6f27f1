// The memory of a GPU, lent out of arenas. One arena is taken at start for what is known to be needed; what goes beyond gets
// further ones, so that a wrong guess costs an allocation and nothing else. Nothing is given back but all at once.
import { alignUp, type DeviceMemory, type MemorySpan } from '../memory.js'
import type { CudaContext } from './context.js'
import type { CudaMemoryLender } from './types.js'

/** Every span begins on this many bytes: enough for bulk copies with 128-byte swizzle when a row is not offset further. */
const DEVICE_ALIGNMENT = 1024

/** The driver hands out memory in pieces of 2 MiB; small spans share arenas of at least this size. */
const ARENA_BYTES = 64 << 20

export class DeviceArenaLender implements CudaMemoryLender {
  readonly #context: CudaContext
  readonly #arenas: DeviceMemory[] = []
  #arenaBytes = 0
  #used = 0
  #lent = 0

  /** @param reserve bytes taken at once */
  constructor(context: CudaContext, reserve = 0, purpose = 'the arena') {
    this.#context = context
    if (reserve > 0) this.#take(alignUp(reserve, DEVICE_ALIGNMENT), purpose)
  }

  get lent(): number {
    return this.#lent
  }

  /** @throws CudaError SY_CUDA_OUT_OF_MEMORY */
  lend(bytes: number, purpose: string): MemorySpan {
    const byteLength = alignUp(Math.max(bytes, 1), DEVICE_ALIGNMENT)
    if (this.#used + byteLength > this.#arenaBytes) this.#take(Math.max(byteLength, ARENA_BYTES), purpose)
    const span = { buffer: this.#arenas.at(-1)!, byteOffset: this.#used, byteLength }
    this.#used += byteLength
    this.#lent += byteLength
    return span
  }

  /** All spans lent are void after this; nothing that uses them may be running. */
  [Symbol.dispose](): void {
    for (const { address } of this.#arenas) this.#context.release(address)
    this.#arenas.length = 0
    this.#arenaBytes = 0
    this.#used = 0
  }

  #take(bytes: number, purpose: string): void {
    const address = this.#context.allocate(bytes, purpose)
    this.#arenas.push({ device: this.#context.device, address })
    this.#arenaBytes = bytes
    this.#used = 0
  }
}
