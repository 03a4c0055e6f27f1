// A Hugging Face checkpoint directory as a map of tensors: one model.safetensors, or shards under model.safetensors.index.json.
// Invariant: after opening, every tensor lies inside a checked file of the directory itself. Bytes come through `mapRange`
// (a memory map, or reads), one tensor at a time; the checkpoint holds none of them.
import { closeSync, existsSync, openSync, readdirSync, readSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { describeJson, isJsonObject, readJsonObject } from '../json-file.js'
import { CheckpointError } from './checkpoint-errors.js'
import { readSafetensorsHeader, type TensorInfo } from './header.js'

/** Bytes [offset, offset + length) of a file, as a view that stays valid while it is referenced. */
export type MapRange = (path: string, offset: number, length: number) => Uint8Array

export interface Checkpoint {
  readonly dir: string
  readonly tensors: ReadonlyMap<string, TensorInfo>
  /** Raw bytes of a whole tensor. @throws CheckpointError when there is no such tensor or the file changed meanwhile. */
  read(name: string): Uint8Array
}

export const INDEX_FILE = 'model.safetensors.index.json'
export const SINGLE_FILE = 'model.safetensors'
const MAX_INDEX_BYTES = 256 * 1024 * 1024
const READ_CHUNK = 1 << 30

/** Opens a checkpoint and checks all its headers. @throws CheckpointError */
export function openCheckpoint(dir: string, options: { readonly mapRange?: MapRange } = {}): Checkpoint {
  const mapRange = options.mapRange ?? readRange
  const tensors = existsSync(join(dir, INDEX_FILE)) ? openShards(dir) : openSingle(dir)
  return {
    dir,
    tensors,
    read(name) {
      const info = tensors.get(name)
      if (!info) throw new CheckpointError('SY_CHECKPOINT_NO_TENSOR', { file: dir, tensor: name })
      if (info.bytes === 0) return new Uint8Array(0)
      let bytes: Uint8Array
      try {
        bytes = mapRange(info.file, info.offset, info.bytes)
      } catch (error) {
        if (error instanceof CheckpointError) throw error
        throw new CheckpointError(
          'SY_CHECKPOINT_READ',
          { file: info.file, tensor: name, found: (error as Error).message },
          { cause: error },
        )
      }
      if (bytes.length !== info.bytes)
        throw new CheckpointError('SY_CHECKPOINT_TRUNCATED', {
          file: info.file,
          tensor: name,
          expected: info.bytes,
          found: bytes.length,
        })
      return bytes
    },
  }
}

function openSingle(dir: string): ReadonlyMap<string, TensorInfo> {
  const file = join(dir, SINGLE_FILE)
  if (existsSync(file)) return readSafetensorsHeader(file).tensors
  throw new CheckpointError('SY_CHECKPOINT_NOT_FOUND', {
    file: dir,
    expected: `${SINGLE_FILE} or ${INDEX_FILE}`,
    found: whatIsThere(dir),
  })
}

function whatIsThere(dir: string): string {
  try {
    if (!statSync(dir).isDirectory()) return 'a file, not a directory'
    const names = readdirSync(dir)
    const weights = names.filter(n => /\.(safetensors|bin|gguf|pth?)$/.test(n)).sort()
    if (weights.length > 0) return `${weights.slice(0, 5).join(', ')}${weights.length > 5 ? ', …' : ''}`
    return names.length === 0 ? 'an empty directory' : 'no weights'
  } catch {
    return 'no such directory'
  }
}

function openShards(dir: string): ReadonlyMap<string, TensorInfo> {
  const file = join(dir, INDEX_FILE)
  const weightMap = readWeightMap(file)
  const byShard = new Map<string, string[]>()
  for (const [tensor, shard] of Object.entries(weightMap)) {
    if (typeof shard !== 'string' || !isPlainFileName(shard))
      throw new CheckpointError('SY_CHECKPOINT_INDEX', {
        file,
        expected: `the name of a .safetensors file in the same directory for ${tensor}`,
        found: describeJson(shard),
      })
    const list = byShard.get(shard)
    if (list) list.push(tensor)
    else byShard.set(shard, [tensor])
  }
  const missing = [...byShard.keys()].filter(shard => !existsSync(join(dir, shard))).sort()
  if (missing.length > 0)
    throw new CheckpointError('SY_CHECKPOINT_SHARD_MISSING', {
      file,
      shard: missing[0],
      tensor: byShard.get(missing[0]!)![0],
      missing: missing.length,
    })

  const tensors = new Map<string, TensorInfo>()
  const shardOf = new Map<string, string>()
  for (const shard of [...byShard.keys()].sort()) {
    for (const [name, info] of readSafetensorsHeader(join(dir, shard)).tensors) {
      const other = shardOf.get(name)
      if (other !== undefined)
        throw new CheckpointError('SY_CHECKPOINT_WRONG_SHARD', {
          file,
          tensor: name,
          expected: 'one shard only',
          found: `in ${other} and in ${shard}`,
        })
      shardOf.set(name, shard)
      tensors.set(name, info)
    }
  }
  for (const [name, shard] of Object.entries(weightMap)) {
    const actual = shardOf.get(name)
    if (actual !== shard)
      throw new CheckpointError('SY_CHECKPOINT_WRONG_SHARD', {
        file,
        tensor: name,
        expected: shard,
        found: actual === undefined ? 'in no shard' : `in ${actual}`,
      })
  }
  return tensors
}

function readWeightMap(file: string): Record<string, unknown> {
  const index = readJsonObject(file, MAX_INDEX_BYTES)
  if (!index.ok)
    throw new CheckpointError('SY_CHECKPOINT_INDEX', { file, expected: 'a JSON object', found: index.found })
  const weightMap = index.value['weight_map']
  if (!isJsonObject(weightMap) || Object.keys(weightMap).length === 0)
    throw new CheckpointError('SY_CHECKPOINT_INDEX', {
      file,
      expected: 'weight_map as an object of tensor and shard names',
      found: isJsonObject(weightMap) ? 'an empty one' : describeJson(weightMap),
    })
  return weightMap
}

/** No separators, no drive, no parent: a shard cannot lead out of the directory. */
const isPlainFileName = (name: string): boolean => /^[^/\\:\0]+\.safetensors$/.test(name) && !name.startsWith('..')

/** The default `MapRange`: reads into a fresh array. */
export function readRange(path: string, offset: number, length: number): Uint8Array {
  const descriptor = openSync(path, 'r')
  try {
    const bytes = new Uint8Array(length)
    let filled = 0
    while (filled < length) {
      const got = readSync(descriptor, bytes, filled, Math.min(length - filled, READ_CHUNK), offset + filled)
      if (got === 0) break
      filled += got
    }
    return filled === length ? bytes : bytes.subarray(0, filled)
  } finally {
    closeSync(descriptor)
  }
}
