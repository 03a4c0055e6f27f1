// Files that appear whole or not at all: written beside the target under a name of their own and renamed when complete, so
// that a full disk or a killed process leaves what was there before.
import { closeSync, openSync, realpathSync, renameSync, rmSync, statSync, writeSync } from 'node:fs'

/**
 * Calls `write` with an open file and puts it in the place of `path`. Pipes and devices are written as they are, and a
 * link stays one.
 * @throws what the file system or `write` throws; `path` is then as before
 */
export function writeWholeFile(path: string, write: (descriptor: number) => void): void {
  const there = statSync(path, { throwIfNoEntry: false })
  if (there !== undefined && !there.isFile()) {
    writeTo(path, write)
    return
  }
  const target = there === undefined ? path : realpathSync(path)
  const temporary = `${target}.${process.pid}.part`
  try {
    writeTo(temporary, write)
    renameSync(temporary, target)
  } catch (error) {
    rmSync(temporary, { force: true })
    throw error
  }
}

/** Every byte, however many calls it takes. */
export function writeAll(descriptor: number, bytes: Uint8Array): void {
  let written = 0
  while (written < bytes.length)
    written += writeSync(descriptor, bytes, written, Math.min(bytes.length - written, 1 << 30))
}

function writeTo(path: string, write: (descriptor: number) => void): void {
  const descriptor = openSync(path, 'w')
  try {
    write(descriptor)
  } finally {
    closeSync(descriptor)
  }
}
