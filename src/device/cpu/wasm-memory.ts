// The one memory of a node whose kernels are WebAssembly: at most 4 GiB, shared by all ranks, grown at start only.
// Invariant: whoever needs memory grows by it and owns what it grew (growing is atomic), so the node and the instances
// in its workers never hand out the same bytes twice. Not a heap: nothing is given back.
import { Unreachable } from '../../config/errors.js'
import { ALIGNMENT, alignUp, type MemoryLender, type MemorySpan } from '../memory.js'
import { CpuDeviceError } from './errors.js'
import { type WasmMemory, WebAssembly } from './webassembly.js'

export const WASM_PAGE = 65536

/** What 32-bit addresses reach. */
export const WASM_MEMORY_LIMIT = 65536 * WASM_PAGE

/** Kept free for the instances: stacks, argument blocks and working space of kernels in every rank. */
export const WASM_RESERVE = 64 << 20

/** Bytes that weights, caches and buffers of all ranks may take together. */
export const WASM_LENDABLE = WASM_MEMORY_LIMIT - WASM_RESERVE

/** Where the mark lies that tells this memory from any other: below the module's data, which start at 1024. */
const MARK_AT = 64
const MARK_WORDS = 4

/** @throws CpuDeviceError SY_DEVICE_WASM_MEMORY when the process may not reserve 4 GiB of addresses */
export function createWasmMemory(): WasmMemory {
  let memory: WasmMemory
  try {
    memory = new WebAssembly.Memory({ initial: 2, maximum: 65536, shared: true })
  } catch (error) {
    throw new CpuDeviceError('SY_DEVICE_WASM_MEMORY', {
      reason: error instanceof Error ? error.message : String(error),
    })
  }
  crypto.getRandomValues(new Uint32Array(MARK_WORDS)).forEach((word, i) => {
    new Uint32Array(memory.buffer, MARK_AT, MARK_WORDS)[i] = word
  })
  return memory
}

/** Refuses what does not fit. @throws CpuDeviceError SY_DEVICE_WASM_MEMORY_FULL */
export function refuseBeyondLimit(bytes: number, purpose: string, lent = 0): void {
  if (lent + bytes <= WASM_LENDABLE) return
  const gib = (n: number) => (n / 2 ** 30).toFixed(2)
  const fields = { purpose, needed: gib(bytes), lent: gib(lent), limit: gib(WASM_LENDABLE) }
  throw new CpuDeviceError('SY_DEVICE_WASM_MEMORY_FULL', fields)
}

/** Lends pieces of the node's memory. Spans lent before a growth stay valid: their buffers are the same bytes. */
export class WasmMemoryLender implements MemoryLender {
  readonly #memory: WasmMemory
  #lent = 0
  #next = 0
  #end = 0
  constructor(memory: WasmMemory) {
    this.#memory = memory
  }

  get lent(): number {
    return this.#lent
  }

  lend(bytes: number, purpose: string): MemorySpan {
    const byteLength = alignUp(Math.max(bytes, ALIGNMENT))
    refuseBeyondLimit(byteLength, purpose, this.#memory.buffer.byteLength - (this.#end - this.#next))
    if (this.#end - this.#next < byteLength) this.#grow(byteLength, purpose)
    const byteOffset = this.#next
    this.#next += byteLength
    this.#lent += byteLength
    return { buffer: this.#memory.buffer, byteOffset, byteLength }
  }

  #grow(bytes: number, purpose: string): void {
    const rest = this.#end - this.#next
    const old = this.#memory.buffer.byteLength
    // The rest of the last piece is used when the new one follows it.
    const pages = Math.ceil((bytes - (old === this.#end ? rest : 0)) / WASM_PAGE)
    let start: number
    try {
      start = this.#memory.grow(pages) * WASM_PAGE
    } catch {
      const reason = `${purpose}: the system refused ${pages * WASM_PAGE} bytes more`
      throw new CpuDeviceError('SY_DEVICE_WASM_MEMORY', { reason })
    }
    if (start !== this.#end) this.#next = start
    this.#end = start + pages * WASM_PAGE
    if (this.#end - this.#next < bytes) throw new Unreachable('an instance grew the memory while the node lent from it')
  }
}

/** Answers whether a buffer is this memory, also when it came through a message and is another object. */
export function belongsTo(memory: WasmMemory): (buffer: SharedArrayBuffer) => boolean {
  const mark = new Int32Array(memory.buffer, MARK_AT, MARK_WORDS)
  const known = new WeakSet<SharedArrayBuffer>()
  return buffer => {
    if (known.has(buffer)) return true
    if (buffer.byteLength < 2 * WASM_PAGE) return false
    const its = new Int32Array(buffer, MARK_AT, MARK_WORDS)
    if (!mark.every((word, i) => word === its[i])) return false
    known.add(buffer)
    return true
  }
}
