// Which ranks of a per_pass or per_token dump were not given. SGLang's recorder writes a file a rank,
// `expert_distribution_recorder_<time>_<rank>.pt`, and each record names its rank: a gap in the numbers or a file of the same
// dump that lies beside the given ones means that part of the load is missing. Ranks above all of these cannot be known of.
import { readdirSync } from 'node:fs'
import { basename, dirname, resolve } from 'node:path'

interface GivenFile {
  readonly file: string
  /** Ranks that its records name. */
  readonly ranks: readonly number[]
}

/** What to say of ranks that are missing; empty when none is known to be. */
export function missingRanksNotes(given: readonly GivenFile[]): readonly string[] {
  const here = new Set(given.flatMap(({ ranks }) => ranks))
  const beside = filesBeside(given.map(({ file }) => file)).filter(({ rank }) => !here.has(rank))
  const last = Math.max(-1, ...here, ...beside.map(({ rank }) => rank))
  const missing = Array.from({ length: last + 1 }, (_, rank) => rank).filter(rank => !here.has(rank))
  if (here.size === 0 || missing.length === 0) return []
  const names = beside.map(({ name }) => name)
  const where =
    names.length === 0 ? '' : `; beside the given files ${names.length === 1 ? 'lies' : 'lie'} ${list(names)}`
  return [
    `the dump is not whole: rank${missing.length === 1 ? '' : 's'} ${list(missing)} of 0 to ${last} ${missing.length === 1 ? 'is' : 'are'} missing, so the load is that of the other ranks only${where}`,
  ]
}

const list = (items: readonly (string | number)[]): string =>
  items.length <= 8 ? items.join(', ') : `${items.slice(0, 8).join(', ')}, … (${items.length})`

const RANK_FILE = /^(.+)_(\d{1,5})\.pt$/

/** Files of the same dumps that were not given. */
function filesBeside(files: readonly string[]): readonly { readonly name: string; readonly rank: number }[] {
  const given = new Set(files.map(file => resolve(file)))
  const found = new Map<string, { name: string; rank: number }>()
  for (const file of files) {
    const stem = RANK_FILE.exec(basename(file))?.[1]
    if (stem === undefined) continue
    for (const name of namesIn(dirname(file))) {
      const match = RANK_FILE.exec(name)
      const path = resolve(dirname(file), name)
      if (match?.[1] === stem && !given.has(path)) found.set(path, { name, rank: Number(match[2]) })
    }
  }
  return [...found.values()].sort((a, b) => a.rank - b.rank)
}

/** A folder that may be entered but not listed tells nothing. */
function namesIn(folder: string): readonly string[] {
  try {
    return readdirSync(folder)
  } catch {
    return []
  }
}
