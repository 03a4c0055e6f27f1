// Lends SharedArrayBuffers whose addresses suit the kernels: 64-byte aligned, so that no vector crosses a cache line,
// and in 2 MiB pages where the system allows it, so that weights do not wait for the page tables. Node puts buffers 16
// bytes past a page. Without the addon there are no addresses; then HostMemoryLender does.
import { ALIGNMENT, alignUp, type MemoryLender, type MemorySpan } from '../memory.js'
import type { Addon } from './addon.js'

/** Smaller buffers would only waste most of a 2 MiB page. */
const HUGE_PAGES_FROM = 4 << 20

export class AlignedMemoryLender implements MemoryLender {
  readonly #addon: Addon
  #lent = 0
  constructor(addon: Addon) {
    this.#addon = addon
  }

  get lent(): number {
    return this.#lent
  }

  lend(bytes: number, _purpose: string): MemorySpan {
    const byteLength = alignUp(Math.max(bytes, ALIGNMENT))
    const buffer = new SharedArrayBuffer(byteLength + ALIGNMENT)
    const address = this.#addon.addressOf(new Uint8Array(buffer, 0, 1))
    if (byteLength >= HUGE_PAGES_FROM) this.#addon.adviseHugePages(address, byteLength)
    this.#lent += byteLength
    return { buffer, byteOffset: (ALIGNMENT - (address % ALIGNMENT)) % ALIGNMENT, byteLength }
  }
}
