// Placements as files: physical_to_logical_map [layers][physical] from .json, .pt, .npy, inline JSON or the map a recorder
// dump carries; written as JSON with exactly that one key, which SGLang's --init-expert-location takes unchanged (it
// passes the dict on as keyword arguments, so any other key is an error there), or as .pt.

import { reason } from '../torch/byte-source.js'
import { saveTorchFile } from '../torch/index.js'
import { writeAll, writeWholeFile } from '../whole-file.js'
import { type FlatArray, flatArray } from './arrays.js'
import { ExpertLoadError } from './errors.js'
import { describeValue, openFile, parseJson } from './read-file.js'

/** Which logical expert every slot of every layer holds. */
export interface PlacementMap {
  readonly layers: number
  readonly physical: number
  /** Highest logical id plus one. */
  readonly logical: number
  /** [layers][physical], row-major. */
  readonly physicalToLogical: Int32Array
}

/**
 * A placement from a path or inline JSON (text that begins with `{`).
 * @throws ExpertLoadError SY_LOAD_NO_PLACEMENT, SY_LOAD_MAP, SY_LOAD_UNREADABLE, SY_LOAD_JSON
 */
export function readPlacement(pathOrJson: string): PlacementMap {
  if (/^\s*\{/.test(pathOrJson))
    return placementOf('the inline placement', parseJson('the inline placement', pathOrJson))
  const { value, array } = openFile(pathOrJson)
  return array === undefined ? placementOf(pathOrJson, value) : checkedMap(pathOrJson, array)
}

/** The placement in an opened file's value. */
export function placementOf(file: string, value: unknown): PlacementMap {
  if (value instanceof Map) {
    for (const key of ['physical_to_logical_map', 'last_physical_to_logical_map']) {
      const array = flatArray(file, key, value.get(key))
      if (array !== undefined) return checkedMap(file, array)
    }
  }
  if (Array.isArray(value) && value.length > 0) return checkedMap(file, flatArray(file, 'the map', value)!)
  const found =
    value instanceof Map && value.has('logical_count') ? 'an expert load (logical_count)' : describeValue(value)
  throw new ExpertLoadError('SY_LOAD_NO_PLACEMENT', { file, found })
}

/** Is there a placement and nothing else in the file? */
export function isPlacementOnly(value: unknown): boolean {
  return value instanceof Map && value.has('physical_to_logical_map') && !value.has('logical_count')
}

export function checkedMap(file: string, array: FlatArray): PlacementMap {
  const bad = (why: string) => new ExpertLoadError('SY_LOAD_MAP', { file, why })
  const [layers, physical] = array.shape
  if (array.shape.length !== 2 || layers === undefined || physical === undefined) {
    throw bad(`its shape is [${array.shape.join(', ')}], not [layers][physical experts]`)
  }
  if (layers === 0 || physical === 0) throw bad('it is empty')
  let logical = 0
  array.values.forEach((id, i) => {
    if (!Number.isInteger(id) || id < 0 || id >= 2 ** 31 - 1) {
      throw bad(`layer ${Math.floor(i / physical)}, slot ${i % physical} holds ${id}, which is no logical expert`)
    }
    if (id >= logical) logical = id + 1
  })
  if (logical > physical) {
    throw bad(`it names logical expert ${logical - 1}, but ${physical} slots cannot hold ${logical} experts`)
  }
  const physicalToLogical = Int32Array.from(array.values)
  for (let layer = 0; layer < layers; layer++) {
    const seen = new Uint8Array(logical)
    for (let p = 0; p < physical; p++) seen[physicalToLogical[layer * physical + p]!] = 1
    const missing = seen.indexOf(0)
    if (missing >= 0) throw bad(`layer ${layer} has no slot for logical expert ${missing}`)
  }
  return { layers, physical, logical, physicalToLogical }
}

/** The JSON text of a placement: one key, one layer a line. */
export function placementJson(map: Pick<PlacementMap, 'layers' | 'physical' | 'physicalToLogical'>): string {
  const rows = Array.from({ length: map.layers }, (_, layer) => {
    const row = map.physicalToLogical.subarray(layer * map.physical, (layer + 1) * map.physical)
    return `[${row.join(',')}]`
  })
  return `{"physical_to_logical_map": [\n${rows.join(',\n')}\n]}\n`
}

/** Writes a placement: `.pt` as torch.save would (int64), anything else as JSON. The file appears whole or not at all. */
export function writePlacement(
  path: string,
  map: Pick<PlacementMap, 'layers' | 'physical' | 'physicalToLogical'>,
): void {
  if (path.endsWith('.pt')) {
    const shape = [map.layers, map.physical]
    saveTorchFile(path, { physical_to_logical_map: { dtype: 'int64', shape, values: map.physicalToLogical } })
  } else writeWhole(path, placementJson(map))
}

/** @throws ExpertLoadError SY_LOAD_UNREADABLE */
export function writeWhole(path: string, content: string | Uint8Array): void {
  try {
    const bytes = typeof content === 'string' ? new TextEncoder().encode(content) : content
    writeWholeFile(path, descriptor => writeAll(descriptor, bytes))
  } catch (error) {
    const missing = (error as NodeJS.ErrnoException).code === 'ENOENT'
    const why = missing ? 'there is no such folder' : reason(error)
    throw new ExpertLoadError('SY_LOAD_UNREADABLE', { file: path, why })
  }
}
