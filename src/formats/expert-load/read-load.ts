// The one way from files to an expert load: recorder dumps (stat, per_pass, per_token), JSON and NPY arrays; several files
// are ranks of one dump and are summed. Invariant: what comes out is finite, non-negative, rectangular and sums exactly.

import { resolve } from 'node:path'
import { checkSum, countsOf, flatArray } from './arrays.js'
import { ExpertLoadError } from './errors.js'
import { missingRanksNotes } from './missing-ranks.js'
import type { PlacementMap } from './placement-file.js'
import { describeValue, type FileFormat, type OpenedFile, openFile } from './read-file.js'
import { type RankRecords, rankRecords, sumRanks } from './records.js'

/** stat: logical counts per step; array: plain numbers without a recorder's frame. */
export type LoadMode = 'stat' | 'per_pass' | 'per_token' | 'array'

export interface ExpertLoad {
  readonly files: readonly string[]
  readonly format: FileFormat
  readonly mode: LoadMode
  readonly steps: number
  readonly layers: number
  /** Logical experts per layer. */
  readonly logical: number
  /** Tokens routed to each logical expert, [steps][layers][logical], row-major. */
  readonly counts: Float64Array
  /** Sum of all counts. */
  readonly total: number
  /** The placement in effect while recording, where the dump carries it. */
  readonly placement: PlacementMap | null
  /** Ids of the forward passes that the steps are, where known. */
  readonly passIds: readonly number[] | null
  /** Things worth knowing that are no errors, in plain words. */
  readonly notes: readonly string[]
}

interface Logical {
  readonly kind: 'logical'
  readonly file: string
  readonly mode: LoadMode
  readonly steps: number
  readonly layers: number
  readonly experts: number
  readonly values: Float64Array
}
type OneFile = Logical | ({ readonly kind: 'records' } & RankRecords)

/**
 * Reads an expert load from one file, or from the files of all ranks of one dump.
 * @throws ExpertLoadError, TorchFileError, NpyError: each says what was expected and what to change
 */
export function readExpertLoad(files: readonly string[]): ExpertLoad {
  files.forEach((file, i) => {
    const other = files.slice(0, i).find(earlier => resolve(earlier) === resolve(file))
    if (other !== undefined) throw new ExpertLoadError('SY_LOAD_RANKS', { file, other, why: 'it is the same file' })
  })
  const opened = files.map(file => openFile(file))
  const format = opened[0]!.format
  const parts = opened.map((file, i) => interpret(files[i]!, file))
  const first = parts[0]!
  for (const part of parts) {
    if (part.kind !== first.kind) {
      const why = `one holds logical counts, the other records of passes`
      throw new ExpertLoadError('SY_LOAD_RANKS', { file: part.file, other: first.file, why })
    }
  }
  if (first.kind === 'records') return fromRecords(files, format, parts as RankRecords[])
  return fromLogical(files, format, parts as Logical[])
}

function interpret(file: string, opened: OpenedFile): OneFile {
  const { value } = opened
  if (value instanceof Map) {
    if (value.has('records')) return { kind: 'records', ...rankRecords(file, value) }
    const array = flatArray(file, 'logical_count', value.get('logical_count'))
    if (array !== undefined) {
      return { kind: 'logical', file, mode: 'stat', ...countsOf(file, 'logical_count', array) }
    }
    const found = value.has('physical_to_logical_map') ? 'a placement (physical_to_logical_map)' : describeValue(value)
    throw new ExpertLoadError('SY_LOAD_KIND', { file, found })
  }
  const array = opened.array ?? flatArray(file, 'the array', value)
  if (array === undefined) throw new ExpertLoadError('SY_LOAD_KIND', { file, found: describeValue(value) })
  return { kind: 'logical', file, mode: 'array', ...countsOf(file, 'the array', array) }
}

function fromLogical(files: readonly string[], format: FileFormat, parts: readonly Logical[]): ExpertLoad {
  const first = parts[0]!
  const counts = first.values
  for (const part of parts.slice(1)) {
    if (part.steps !== first.steps || part.layers !== first.layers || part.experts !== first.experts) {
      const shape = (p: Logical) => `[${p.steps}, ${p.layers}, ${p.experts}]`
      const why = `its counts have shape ${shape(part)}, the other ${shape(first)}`
      throw new ExpertLoadError('SY_LOAD_RANKS', { file: part.file, other: first.file, why })
    }
    for (let i = 0; i < counts.length; i++) counts[i] = counts[i]! + part.values[i]!
  }
  const load = {
    files,
    format,
    mode: first.mode,
    steps: first.steps,
    layers: first.layers,
    logical: first.experts,
    counts,
  }
  return { ...load, total: total(files, counts), placement: null, passIds: null, notes: emptyNotes(load) }
}

function fromRecords(files: readonly string[], format: FileFormat, ranks: readonly RankRecords[]): ExpertLoad {
  const { passIds, values, incomplete } = sumRanks(ranks)
  const { placement, mode } = ranks[0]!
  const { layers, logical } = placement
  const load = { files, format, mode, steps: passIds.length, layers, logical, counts: values }
  const notes = [...missingRanksNotes(ranks), ...emptyNotes(load)]
  if (incomplete.length > 0) {
    notes.push(`${incomplete.length} of ${passIds.length} passes are not in every file; they are summed as they are`)
  }
  return { ...load, total: total(files, values), placement, passIds, notes }
}

/** A load without a single token cannot be balanced; steps without any are worth a note. */
function total(files: readonly string[], counts: Float64Array): number {
  const sum = checkSum(files.join(', '), counts)
  if (sum === 0) throw new ExpertLoadError('SY_LOAD_EMPTY', { file: files.join(', '), what: 'every count' })
  return sum
}

function emptyNotes(load: { steps: number; layers: number; logical: number; counts: Float64Array }): readonly string[] {
  const { steps, layers, logical, counts } = load
  const perLayer = new Float64Array(layers)
  let emptySteps = 0
  for (let step = 0; step < steps; step++) {
    let any = false
    for (let layer = 0; layer < layers; layer++) {
      const start = (step * layers + layer) * logical
      for (let e = 0; e < logical; e++) {
        const n = counts[start + e]!
        if (n > 0) any = true
        perLayer[layer] = perLayer[layer]! + n
      }
    }
    if (!any) emptySteps++
  }
  const dense = [...perLayer.keys()].filter(layer => perLayer[layer] === 0)
  const notes: string[] = []
  if (dense.length > 0)
    notes.push(`no token was routed in layer${dense.length === 1 ? '' : 's'} ${ranges(dense)} (dense, or not recorded)`)
  if (emptySteps > 0) notes.push(`${emptySteps} of ${steps} steps hold no token (an unfilled buffer?)`)
  return notes
}

/** 0, 1, 2, 5 → "0-2, 5". */
function ranges(numbers: readonly number[]): string {
  const parts: [number, number][] = []
  for (const n of numbers) {
    const last = parts.at(-1)
    if (last !== undefined && last[1] === n - 1) last[1] = n
    else parts.push([n, n])
  }
  return parts.map(([a, b]) => (a === b ? `${a}` : `${a}-${b}`)).join(', ')
}
