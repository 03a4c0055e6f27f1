// Memory as ranks see it: spans of shared memory that the node allocates before ranks start and lends to them.
// A rank owns nothing that a peer can address, so a rank that dies takes no memory with it.

/** Memory that only a device reads and writes: the host knows its address and nothing else. */
export interface DeviceMemory {
  /** Which device, for messages: "cuda:0". */
  readonly device: string
  readonly address: number
}

/** A piece of shared host memory or of a device's own. It can be posted to a worker; both sides then see the same bytes. */
export interface MemorySpan {
  readonly buffer: SharedArrayBuffer | DeviceMemory
  /** Bytes from the start of `buffer`; a multiple of 64 for everything the node lends. */
  readonly byteOffset: number
  readonly byteLength: number
}

/** Alignment of every lent span and of every buffer in an arena: one cache line, one AVX-512 register. */
export const ALIGNMENT = 64

export const alignUp = (bytes: number, alignment: number = ALIGNMENT): number =>
  Math.ceil(bytes / alignment) * alignment

/** Takes memory from the node. Allocation happens at start only, never while ranks run. */
export interface MemoryLender {
  /** @returns a zeroed span of at least `bytes`, 64-byte aligned. `purpose` names it in reports. */
  lend(bytes: number, purpose: string): MemorySpan
  /** Bytes lent so far. */
  readonly lent: number
}

/** Lends SharedArrayBuffers of this process, one buffer a span, so that no typed-array view meets Node 20's 2^32 limit. */
export class HostMemoryLender implements MemoryLender {
  #lent = 0

  get lent(): number {
    return this.#lent
  }

  lend(bytes: number, _purpose: string): MemorySpan {
    const byteLength = alignUp(Math.max(bytes, ALIGNMENT))
    this.#lent += byteLength
    return { buffer: new SharedArrayBuffer(byteLength), byteOffset: 0, byteLength }
  }
}

/** The part of `span` from `byteOffset` on, `byteLength` bytes long. */
export const subspan = (span: MemorySpan, byteOffset: number, byteLength: number): MemorySpan => ({
  buffer: span.buffer,
  byteOffset: span.byteOffset + byteOffset,
  byteLength,
})

/** The host's memory behind a span. @throws TypeError for memory of a device, which the host cannot read */
export function hostBuffer({ buffer }: MemorySpan): SharedArrayBuffer {
  if (buffer instanceof SharedArrayBuffer) return buffer
  throw new TypeError(`the host cannot look into memory of ${buffer.device}`)
}

export const f32View = (s: MemorySpan): Float32Array =>
  new Float32Array(hostBuffer(s), s.byteOffset, s.byteLength >>> 2)
export const i32View = (s: MemorySpan): Int32Array => new Int32Array(hostBuffer(s), s.byteOffset, s.byteLength >>> 2)
export const u16View = (s: MemorySpan): Uint16Array => new Uint16Array(hostBuffer(s), s.byteOffset, s.byteLength >>> 1)
export const u8View = (s: MemorySpan): Uint8Array => new Uint8Array(hostBuffer(s), s.byteOffset, s.byteLength)
