// Reads a JSON object from disk with every way it can go wrong told apart, so that each area reports it in its own words.
// Invariant: never throws and never reads more than `limit` bytes. It knows nothing of what the object should hold.
import { closeSync, constants, fstatSync, openSync, readSync } from 'node:fs'

export type JsonObject = Record<string, unknown>

export type JsonFileResult =
  | { readonly ok: true; readonly value: JsonObject }
  | { readonly ok: false; readonly missing: boolean; readonly found: string }

export const isJsonObject = (value: unknown): value is JsonObject =>
  typeof value === 'object' && value !== null && !Array.isArray(value)

/** Names what a JSON value is, for messages: `a string`, `a list`, `null`. */
export function describeJson(value: unknown): string {
  if (value === null) return 'null'
  if (value === undefined) return 'nothing'
  if (Array.isArray(value)) return `a list of ${value.length}`
  if (typeof value === 'object') return 'an object'
  if (typeof value === 'string') return JSON.stringify(value.length > 80 ? `${value.slice(0, 77)}...` : value)
  return String(value)
}

/** Bytes to text, or null when they are not UTF-8. */
export function decodeUtf8(bytes: Uint8Array): string | null {
  try {
    return new TextDecoder('utf-8', { fatal: true, ignoreBOM: false }).decode(bytes)
  } catch {
    return null
  }
}

/** Reads the object in `path`. `found` finishes the sentence "expected a JSON object, found …". */
export function readJsonObject(path: string, limit: number): JsonFileResult {
  const text = readText(path, limit)
  if (typeof text !== 'string') return text
  let value: unknown
  try {
    value = JSON.parse(text)
  } catch (error) {
    return { ok: false, missing: false, found: `invalid JSON (${(error as Error).message.slice(0, 160)})` }
  }
  if (!isJsonObject(value)) return { ok: false, missing: false, found: describeJson(value) }
  return { ok: true, value }
}

/** The whole text of a UTF-8 file of at most `limit` bytes, or what is wrong with it. */
export function readText(path: string, limit: number): string | Extract<JsonFileResult, { ok: false }> {
  let descriptor: number
  try {
    // Without waiting: opening a pipe would wait for a writer before it could be seen that this is no file.
    descriptor = openSync(path, constants.O_RDONLY | (constants.O_NONBLOCK ?? 0))
  } catch (error) {
    const code = (error as NodeJS.ErrnoException).code
    return { ok: false, missing: code === 'ENOENT' || code === 'ENOTDIR', found: `an unreadable file (${code})` }
  }
  try {
    const stat = fstatSync(descriptor)
    if (!stat.isFile()) return { ok: false, missing: false, found: 'something that is not a file' }
    if (stat.size > limit) return { ok: false, missing: false, found: `${stat.size} bytes (at most ${limit} are read)` }
    const bytes = new Uint8Array(stat.size)
    let filled = 0
    while (filled < bytes.length) {
      const got = readSync(descriptor, bytes, filled, bytes.length - filled, filled)
      if (got === 0) break
      filled += got
    }
    const text = decodeUtf8(bytes.subarray(0, filled))
    return text ?? { ok: false, missing: false, found: 'bytes that are not UTF-8' }
  } catch (error) {
    const code = (error as NodeJS.ErrnoException).code
    return { ok: false, missing: false, found: `an unreadable file (${code ?? (error as Error).message})` }
  } finally {
    closeSync(descriptor)
  }
}

/**
 * First key that occurs twice in one object of `text`, or null. JSON.parse keeps the last silently, which would hide a
 * tensor. Only for text that JSON.parse has accepted; iterative, so nesting depth is no matter.
 */
export function findDuplicateKey(text: string): string | null {
  const open: (Set<string> | null)[] = []
  let expectKey = false
  for (let i = 0; i < text.length; i++) {
    const c = text.charCodeAt(i)
    if (c === 0x22) {
      const start = i
      i++
      while (i < text.length && text.charCodeAt(i) !== 0x22) i += text.charCodeAt(i) === 0x5c ? 2 : 1
      const keys = open.at(-1)
      if (expectKey && keys) {
        const key = JSON.parse(text.slice(start, i + 1)) as string
        if (keys.has(key)) return key
        keys.add(key)
        expectKey = false
      }
    } else if (c === 0x7b) {
      open.push(new Set())
      expectKey = true
    } else if (c === 0x5b) {
      open.push(null)
      expectKey = false
    } else if (c === 0x7d || c === 0x5d) {
      open.pop()
      expectKey = false
    } else if (c === 0x2c) {
      expectKey = open.at(-1) instanceof Set
    }
  }
  return null
}
