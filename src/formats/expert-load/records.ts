// per_pass and per_token records of SGLang's recorder: counts of physical experts per forward pass and rank, summed over
// ranks by forward_pass_id and turned into logical counts by the map the dump carries.
// Source: the recorder's dump layout {records: [{forward_pass_id, rank, gatherer_key, global_physical_count [layers,
// physical], …}], last_physical_to_logical_map [layers, physical]}; per_token adds topk_ids_of_layer [layers, tokens, k]
// with physical ids, -1 where a token has fewer.

import { flatArray } from './arrays.js'
import { ExpertLoadError } from './errors.js'
import { checkedMap, type PlacementMap } from './placement-file.js'

export interface RankRecords {
  readonly file: string
  readonly mode: 'per_pass' | 'per_token'
  readonly placement: PlacementMap
  readonly records: readonly PassRecord[]
  /** Ranks that the records name, each once. */
  readonly ranks: readonly number[]
}

interface PassRecord {
  readonly pass: number
  /** Tells the same record read twice from two ranks' records. */
  readonly source: string
  /** [layers][physical]. */
  readonly physicalCount: Float64Array
}

/** The records of one rank's file. @throws ExpertLoadError SY_LOAD_RECORD, SY_LOAD_MAP, SY_LOAD_EMPTY, SY_LOAD_VALUE */
export function rankRecords(file: string, dump: ReadonlyMap<unknown, unknown>): RankRecords {
  const map = flatArray(file, 'last_physical_to_logical_map', dump.get('last_physical_to_logical_map'))
  if (map === undefined) {
    throw new ExpertLoadError('SY_LOAD_MAP', { file, why: 'last_physical_to_logical_map is missing' })
  }
  const placement = checkedMap(file, map)
  const list = dump.get('records')
  if (!Array.isArray(list) || list.length === 0) throw new ExpertLoadError('SY_LOAD_EMPTY', { file, what: 'records' })
  const records = list.map((record: unknown, i) => passRecord(file, i, record, placement))
  const perToken = list.some((r: unknown) => r instanceof Map && r.has('topk_ids_of_layer'))
  const named = list.map((r: unknown) => (r instanceof Map ? (r.get('rank') as unknown) : null))
  const isRank = (rank: unknown): rank is number =>
    Number.isInteger(rank) && (rank as number) >= 0 && (rank as number) < 1 << 16
  const ranks = [...new Set(named)].filter(isRank)
  return { file, mode: perToken ? 'per_token' : 'per_pass', placement, records, ranks }
}

function passRecord(file: string, index: number, record: unknown, placement: PlacementMap): PassRecord {
  const bad = (why: string) => new ExpertLoadError('SY_LOAD_RECORD', { file, record: index, why })
  if (!(record instanceof Map)) throw bad('it is not a dict')
  const pass: unknown = record.get('forward_pass_id')
  if (typeof pass !== 'number' || !Number.isSafeInteger(pass)) throw bad('forward_pass_id is missing')
  const { layers, physical } = placement
  const recorded = flatArray(file, 'global_physical_count', record.get('global_physical_count'))
  if (recorded !== undefined) {
    if (recorded.shape.length !== 2 || recorded.shape[0] !== layers || recorded.shape[1] !== physical) {
      const wanted = `[${layers}, ${physical}] as the placement`
      throw bad(`global_physical_count has shape [${recorded.shape.join(', ')}], not ${wanted}`)
    }
    const wrong = recorded.values.findIndex(v => !(v >= 0 && v < Infinity))
    if (wrong >= 0) {
      const where = `global_physical_count of record ${index}, layer ${Math.floor(wrong / physical)}, slot ${wrong % physical}`
      throw new ExpertLoadError('SY_LOAD_VALUE', { file, where, value: String(recorded.values[wrong]) })
    }
  }
  const ids = flatArray(file, 'topk_ids_of_layer', record.get('topk_ids_of_layer'))
  let physicalCount = recorded?.values
  if (ids !== undefined) {
    if (ids.shape.length !== 3 || ids.shape[0] !== layers) {
      throw bad(`topk_ids_of_layer has shape [${ids.shape.join(', ')}], not [${layers}, tokens, k]`)
    }
    const binned = binIds(ids.values, layers, physical)
    if (binned === undefined) throw bad(`topk_ids_of_layer names a slot beyond ${physical - 1}`)
    if (physicalCount?.some((n, i) => n !== binned[i])) {
      throw bad('global_physical_count is not what its topk_ids_of_layer add up to')
    }
    physicalCount = binned
  }
  if (physicalCount === undefined) throw bad('it has neither global_physical_count nor topk_ids_of_layer')
  return { pass, source: `${pass}/${String(record.get('rank'))}/${String(record.get('gatherer_key'))}`, physicalCount }
}

/** How often each slot is named, per layer; -1 is padding. Undefined when an id is out of range. */
function binIds(ids: Float64Array, layers: number, physical: number): Float64Array | undefined {
  const counts = new Float64Array(layers * physical)
  const perLayer = ids.length / layers
  for (let i = 0; i < ids.length; i++) {
    const id = ids[i]!
    if (id === -1) continue
    if (!(id >= 0 && id < physical)) return undefined
    const cell = Math.floor(i / perLayer) * physical + id
    counts[cell] = counts[cell]! + 1
  }
  return counts
}

/** Sums the ranks' records by pass, in ascending order of passes, as logical counts [passes][layers][logical]. */
export function sumRanks(ranks: readonly RankRecords[]) {
  const first = ranks[0]!
  const { layers, physical, logical, physicalToLogical } = first.placement
  const passes = new Map<number, Float64Array>()
  const seen = new Map<string, string>()
  for (const rank of ranks) {
    checkSameDump(first, rank)
    for (const { pass, source, physicalCount } of rank.records) {
      const other = seen.get(source)
      if (other !== undefined && other !== rank.file) {
        throw new ExpertLoadError('SY_LOAD_RANKS', {
          file: rank.file,
          other,
          why: `both hold pass ${pass} of the same rank`,
        })
      }
      seen.set(source, rank.file)
      const counts = passes.get(pass) ?? new Float64Array(layers * logical)
      passes.set(pass, counts)
      for (let i = 0; i < physicalCount.length; i++) {
        const cell = Math.floor(i / physical) * logical + physicalToLogical[i]!
        counts[cell] = counts[cell]! + physicalCount[i]!
      }
    }
  }
  const passIds = [...passes.keys()].sort((a, b) => a - b)
  const values = new Float64Array(passIds.length * layers * logical)
  passIds.forEach((pass, step) => {
    values.set(passes.get(pass)!, step * layers * logical)
  })
  const incomplete = passIds.filter(pass => ranks.some(rank => !rank.records.some(r => r.pass === pass)))
  return { passIds, values, incomplete }
}

function checkSameDump(first: RankRecords, rank: RankRecords): void {
  const differ = (why: string) => new ExpertLoadError('SY_LOAD_RANKS', { file: rank.file, other: first.file, why })
  if (rank.mode !== first.mode) throw differ(`it is ${rank.mode}, the other ${first.mode}`)
  const [a, b] = [first.placement, rank.placement]
  if (a.layers !== b.layers || a.physical !== b.physical) {
    throw differ(`it has ${b.layers} layers of ${b.physical} slots, the other ${a.layers} of ${a.physical}`)
  }
  if (!a.physicalToLogical.every((id, i) => id === b.physicalToLogical[i])) throw differ('their placements differ')
}
