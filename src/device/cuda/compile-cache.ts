// Compiled kernels on disk, found by what went into them: every source text, the options, the compiler. A file appears whole
// or not at all, so any number of processes may share the folder. A folder that cannot be written only costs time.
import { createHash } from 'node:crypto'
import { existsSync, mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { homedir } from 'node:os'
import { dirname, join } from 'node:path'

/** A file with everything it includes, itself first. */
export interface SourceFile {
  readonly name: string
  readonly text: string
}

type Environment = Readonly<Record<string, string | undefined>>

/** `$SWITCHYARD_CACHE_DIR/cuda`, else `switchyard/cuda` in the user's cache folder. */
export function cacheFolder(env: Environment = process.env): string {
  const own = env['SWITCHYARD_CACHE_DIR']
  if (own !== undefined && own !== '') return join(own, 'cuda')
  const user = env['XDG_CACHE_HOME']
  return join(user !== undefined && user !== '' ? user : join(homedir(), '.cache'), 'switchyard', 'cuda')
}

/**
 * A kernel file and what it includes by `#include "..."`, each once, in the order met.
 * @param read text of a file beside the first; throws when it is missing
 */
export function collectSources(name: string, read: (name: string) => string): SourceFile[] {
  const files = new Map<string, SourceFile>()
  const visit = (file: string): void => {
    if (files.has(file)) return
    const text = read(file)
    files.set(file, { name: file, text })
    for (const [, included] of text.matchAll(/^[ \t]*#[ \t]*include[ \t]*"([^"]+)"/gm)) visit(included!)
  }
  visit(name)
  return [...files.values()]
}

/** @param compiler name and version of what compiles */
export function cacheKey(sources: readonly SourceFile[], options: readonly string[], compiler: string): string {
  const hash = createHash('sha256')
  // Lengths keep neighbouring texts apart.
  const add = (text: string): void => {
    hash.update(`${Buffer.byteLength(text)}:`).update(text)
  }
  add(compiler)
  add(String(options.length))
  options.forEach(add)
  for (const { name, text } of sources) {
    add(name)
    add(text)
  }
  return hash.digest('hex')
}

export class CompileCache {
  readonly folder: string

  constructor(folder: string = cacheFolder()) {
    this.folder = folder
  }

  /** What `compile` returns for this key, from disk if it is there. @param label begins the file's name, for people */
  get(label: string, key: string, compile: () => Uint8Array): Uint8Array {
    const path = this.#path(label, key)
    const kept = readOrNull(path)
    if (kept !== null) return kept
    const made = compile()
    this.#keep(path, made)
    return made
  }

  has(label: string, key: string): boolean {
    return existsSync(this.#path(label, key))
  }

  #path(label: string, key: string): string {
    return join(this.folder, `${label}-${key.slice(0, 32)}.cubin`)
  }

  #keep(path: string, bytes: Uint8Array): void {
    const partial = `${path}.${process.pid}.${performance.now()}.part`
    try {
      mkdirSync(dirname(path), { recursive: true })
      writeFileSync(partial, bytes)
      renameSync(partial, path)
    } catch {
      // Read-only or full: the next start compiles again.
      removeQuietly(partial)
    }
  }
}

function removeQuietly(path: string): void {
  try {
    rmSync(path, { force: true })
  } catch {
    // It was never made.
  }
}

function readOrNull(path: string): Uint8Array | null {
  try {
    const bytes = readFileSync(path)
    return bytes.length > 0 ? bytes : null
  } catch {
    return null
  }
}
