// Ranges of files as bytes: mapped by the addon, or read with fs where there is none. A range is at most 2^32 - 1
// elements (Node 20), so large files are taken piece by piece. Mapped bytes must not be written.
import { closeSync, openSync, readSync, statSync } from 'node:fs'
import type { Addon } from './addon.js'
import { CpuDeviceError } from './errors.js'

/** `length` bytes of `path` from `offset` on. Mapped bytes stay valid as long as the array is referenced. */
export type MapFileRange = (path: string, offset: number, length: number) => Uint8Array

const reasonOf = (error: unknown): string => (error instanceof Error ? error.message : String(error))

/** Maps through the addon; without one, reads a copy. */
export function fileMapper(addon: Addon | undefined): MapFileRange {
  return (path, offset, length) => {
    if (length === 0) return new Uint8Array(0)
    try {
      if (!(offset >= 0 && length > 0)) throw new Error('the range is not one')
      return addon ? new Uint8Array(addon.mapFile(path, offset, length)) : readRange(path, offset, length)
    } catch (error) {
      throw new CpuDeviceError('SY_DEVICE_UNREADABLE_FILE', {
        path,
        from: offset,
        to: offset + length,
        reason: reasonOf(error),
      })
    }
  }
}

/** The whole of a file that fits a typed array. */
export function wholeFile(map: MapFileRange, path: string): Uint8Array {
  let size: number
  try {
    size = statSync(path).size
  } catch (error) {
    throw new CpuDeviceError('SY_DEVICE_UNREADABLE_FILE', { path, from: 0, to: 'its end', reason: reasonOf(error) })
  }
  return map(path, 0, size)
}

function readRange(path: string, offset: number, length: number): Uint8Array {
  const bytes = new Uint8Array(length)
  const fd = openSync(path, 'r')
  try {
    let done = 0
    while (done < length) {
      const n = readSync(fd, bytes, done, Math.min(length - done, 1 << 30), offset + done)
      if (n === 0) throw new Error('the range reaches beyond the file')
      done += n
    }
  } finally {
    closeSync(fd)
  }
  return bytes
}
