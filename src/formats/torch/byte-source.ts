// Random access to bytes: a file or memory behind one small contract, so that multi-gigabyte dumps are never read whole.
// Invariant: `read` returns exactly the asked bytes or throws; nothing outside [0, size) is ever touched.

import { closeSync, fstatSync, openSync, readSync } from 'node:fs'
import { TorchFileError } from './errors.js'

export interface ByteSource extends Disposable {
  /** What to call it in errors: the path as the user gave it. */
  readonly name: string
  /** Bytes. */
  readonly size: number
  /** The bytes [offset, offset + length). */
  read(offset: number, length: number): Uint8Array
}

function checkRange(source: ByteSource, offset: number, length: number): void {
  if (!(offset >= 0 && length >= 0 && offset + length <= source.size)) {
    throw new TorchFileError('SY_TORCH_DAMAGED', {
      file: source.name,
      why: `bytes ${offset} to ${offset + length} are needed, the file has ${source.size}`,
    })
  }
}

/** A view of memory. */
export class MemorySource implements ByteSource {
  readonly name: string
  readonly #bytes: Uint8Array
  constructor(name: string, bytes: Uint8Array) {
    this.name = name
    this.#bytes = bytes
  }
  get size(): number {
    return this.#bytes.byteLength
  }
  read(offset: number, length: number): Uint8Array {
    checkRange(this, offset, length)
    return this.#bytes.subarray(offset, offset + length)
  }
  [Symbol.dispose](): void {}
}

/** An open file; owns its descriptor. */
export class FileSource implements ByteSource {
  readonly name: string
  readonly size: number
  readonly #descriptor: number
  constructor(path: string) {
    this.name = path
    let descriptor = -1
    try {
      descriptor = openSync(path, 'r')
      const stat = fstatSync(descriptor)
      if (!stat.isFile()) throw new Error('it is not a regular file')
      this.size = stat.size
    } catch (error) {
      if (descriptor >= 0) closeSync(descriptor)
      throw new TorchFileError('SY_TORCH_UNREADABLE', { file: path, why: reason(error) })
    }
    this.#descriptor = descriptor
  }
  read(offset: number, length: number): Uint8Array {
    checkRange(this, offset, length)
    const bytes = new Uint8Array(length)
    let done = 0
    while (done < length) {
      const got = readSync(this.#descriptor, bytes, done, Math.min(length - done, 1 << 28), offset + done)
      if (got === 0)
        throw new TorchFileError('SY_TORCH_DAMAGED', { file: this.name, why: 'it became shorter while read' })
      done += got
    }
    return bytes
  }
  [Symbol.dispose](): void {
    closeSync(this.#descriptor)
  }
}

/** The plain words of a file-system error. */
export function reason(error: unknown): string {
  const code = (error as NodeJS.ErrnoException).code
  if (code === 'ENOENT') return 'there is no such file'
  if (code === 'EACCES' || code === 'EPERM') return 'permission denied'
  if (code === 'EISDIR') return 'it is a directory'
  return error instanceof Error ? error.message : String(error)
}
