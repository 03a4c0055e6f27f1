// A few bytes outside the collector's heap that the driver reads by address: launch arguments, descriptors, scalars.
import { hostAddress } from './host-address.js'
import type { Koffi } from './libraries.js'

export class PackedMemory {
  readonly bytes: Uint8Array
  readonly view: DataView
  readonly address: number

  /** @param alignment a power of two, at most 64 */
  constructor(koffi: Koffi, byteLength: number, alignment = 64) {
    const whole = new Uint8Array(new SharedArrayBuffer(byteLength + alignment))
    const start = hostAddress(koffi, whole)
    const skip = (alignment - (start % alignment)) % alignment
    this.bytes = whole.subarray(skip, skip + byteLength)
    this.view = new DataView(whole.buffer, skip, byteLength)
    this.address = start + skip
  }

  u32(offset: number, value: number): void {
    this.view.setUint32(offset, value, true)
  }

  f32(offset: number, value: number): void {
    this.view.setFloat32(offset, value, true)
  }

  /** A pointer or size below 2^53. */
  u64(offset: number, value: number): void {
    this.view.setUint32(offset, value % 4294967296, true)
    this.view.setUint32(offset + 4, Math.floor(value / 4294967296), true)
  }

  /** Reads what a call wrote; values below 2^53. */
  getU64(offset: number): number {
    return this.view.getUint32(offset, true) + this.view.getUint32(offset + 4, true) * 4294967296
  }
}
