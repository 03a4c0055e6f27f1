// Reader, writer and index: what is written is read back, and every broken header is refused with the file and tensor named.
import { mkdirSync, mkdtempSync, readFileSync, rmSync, truncateSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import {
  CheckpointError,
  openCheckpoint,
  readSafetensorsHeader,
  type TensorToWrite,
  writeSafetensors,
} from './index.js'

let root: string
beforeAll(() => {
  root = mkdtempSync(join(tmpdir(), 'sy-safetensors-'))
})
afterAll(() => rmSync(root, { recursive: true, force: true }))

let serial = 0
const freshDir = (): string => {
  const dir = join(root, `d${serial++}`)
  mkdirSync(dir)
  return dir
}

const f32 = (...values: number[]): TensorToWrite => ({
  dtype: 'F32',
  shape: [values.length],
  data: Float32Array.from(values),
})

/** A file with any header text and any number of data bytes. */
function raw(header: string | Uint8Array, dataBytes: number, length?: bigint): string {
  const text = typeof header === 'string' ? new TextEncoder().encode(header) : header
  const file = new Uint8Array(8 + text.length + dataBytes)
  new DataView(file.buffer).setBigUint64(0, length ?? BigInt(text.length), true)
  file.set(text, 8)
  const path = join(freshDir(), 'model.safetensors')
  writeFileSync(path, file)
  return path
}

function refusal(run: () => unknown): CheckpointError {
  try {
    run()
  } catch (error) {
    expect(error).toBeInstanceOf(CheckpointError)
    return error as CheckpointError
  }
  throw new Error('nothing was refused')
}

const entry = (over: Record<string, unknown>): string =>
  JSON.stringify({ w: { dtype: 'F32', shape: [2], data_offsets: [0, 8], ...over } })

describe('one file', () => {
  it('reads back what was written, aligned to its element size', () => {
    const dir = freshDir()
    writeSafetensors(
      join(dir, 'model.safetensors'),
      new Map<string, TensorToWrite>([
        ['b', { dtype: 'U8', shape: [3], data: Uint8Array.of(1, 2, 3) }],
        ['a', { dtype: 'F32', shape: [2, 1], data: Float32Array.of(1.5, -2) }],
        ['empty', { dtype: 'BF16', shape: [0, 4], data: new Uint16Array(0) }],
        ['scalar', { dtype: 'I64', shape: [], data: BigInt64Array.of(-7n) }],
      ]),
      { format: 'pt' },
    )
    const checkpoint = openCheckpoint(dir)
    expect([...checkpoint.tensors.keys()].sort()).toEqual(['a', 'b', 'empty', 'scalar'])
    expect(new Float32Array(checkpoint.read('a').slice().buffer)).toEqual(Float32Array.of(1.5, -2))
    expect(checkpoint.read('b')).toEqual(Uint8Array.of(1, 2, 3))
    expect(checkpoint.read('empty').length).toBe(0)
    expect(new BigInt64Array(checkpoint.read('scalar').slice().buffer)[0]).toBe(-7n)
    expect(checkpoint.tensors.get('a')).toMatchObject({ dtype: 'F32', shape: [2, 1], bytes: 8 })
    for (const name of ['a', 'scalar']) expect(checkpoint.tensors.get(name)!.offset % 4).toBe(0)
    expect(readSafetensorsHeader(join(dir, 'model.safetensors')).metadata).toEqual({ format: 'pt' })
  })

  it('reads files of the reference library', () => {
    const checkpoint = openCheckpoint('test/fixtures/checkpoints/deepseek_v3')
    expect(checkpoint.tensors.get('lm_head.weight')).toMatchObject({ dtype: 'F32', shape: [160, 64], bytes: 40960 })
    const demo = openCheckpoint('models/demo')
    expect(demo.tensors.get('model.layers.0.mlp.up_proj.weight_scale_inv')!.shape).toEqual([6, 2])
  })

  it('passes ranges through mapRange', () => {
    const dir = freshDir()
    writeSafetensors(join(dir, 'model.safetensors'), new Map([['w', f32(1, 2)]]))
    const file = readFileSync(join(dir, 'model.safetensors'))
    const asked: [number, number][] = []
    const checkpoint = openCheckpoint(dir, {
      mapRange: (_, offset, length) => {
        asked.push([offset, length])
        return file.subarray(offset, offset + length)
      },
    })
    expect(checkpoint.read('w').length).toBe(8)
    expect(asked).toEqual([[checkpoint.tensors.get('w')!.offset, 8]])
  })

  const two = (second: unknown): string =>
    `{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":${JSON.stringify(second)}}`
  it.each<[string, () => string, string, RegExp]>([
    ['an empty file', () => raw('', 0), 'SY_CHECKPOINT_HEADER', /length of 0/],
    ['an absurd header length', () => raw('{}', 0, 2n ** 63n), 'SY_CHECKPOINT_HEADER', /9223372036854775808/],
    ['a header longer than the file', () => raw('{}', 0, 5000n), 'SY_CHECKPOINT_TRUNCATED', /the header needs 5008/],
    ['bytes that are not UTF-8', () => raw(Uint8Array.of(0x7b, 0xff, 0x7d), 0), 'SY_CHECKPOINT_HEADER', /UTF-8/],
    ['invalid JSON', () => raw('{"a":', 0), 'SY_CHECKPOINT_HEADER', /JSON/],
    ['a list', () => raw('[1]', 0), 'SY_CHECKPOINT_HEADER', /a list of 1/],
    [
      'a name twice',
      () =>
        raw(
          '{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"\\u0077":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
          1,
        ),
      'SY_CHECKPOINT_HEADER',
      /"w" twice/,
    ],
    ['a null entry', () => raw('{"w":null}', 0), 'SY_CHECKPOINT_TENSOR', /tensor w: .*null/],
    ['an unknown dtype', () => raw(entry({ dtype: 'F7' }), 8), 'SY_CHECKPOINT_TENSOR', /found "F7"/],
    ['a dtype named like a method', () => raw(entry({ dtype: 'toString' }), 8), 'SY_CHECKPOINT_TENSOR', /toString/],
    ['a negative side', () => raw(entry({ shape: [-2] }), 8), 'SY_CHECKPOINT_TENSOR', /\[-2\]/],
    ['a fractional side', () => raw(entry({ shape: [1.5] }), 8), 'SY_CHECKPOINT_TENSOR', /1\.5/],
    ['a shape beyond integers', () => raw(entry({ shape: [2 ** 40, 2 ** 40] }), 8), 'SY_CHECKPOINT_TENSOR', /Infinity/],
    ['another size than its shape', () => raw(entry({ shape: [3] }), 8), 'SY_CHECKPOINT_TENSOR', /12 bytes.*8 bytes/],
    ['offsets out of order', () => raw(entry({ data_offsets: [8, 0] }), 8), 'SY_CHECKPOINT_TENSOR', /in order/],
    ['offsets that are text', () => raw(entry({ data_offsets: ['0', '8'] }), 8), 'SY_CHECKPOINT_TENSOR', /list of 2/],
    ['data beyond the file', () => raw(entry({}), 7), 'SY_CHECKPOINT_TRUNCATED', /: w needs/],
    ['bytes after the last tensor', () => raw(entry({}), 9), 'SY_CHECKPOINT_HEADER', /8 bytes of tensors/],
    [
      'an overlap',
      () => raw(two({ dtype: 'U8', shape: [4], data_offsets: [2, 6] }), 6),
      'SY_CHECKPOINT_TENSOR',
      /overlap/,
    ],
    ['a gap', () => raw(two({ dtype: 'U8', shape: [4], data_offsets: [5, 9] }), 9), 'SY_CHECKPOINT_TENSOR', /a gap/],
    ['metadata of numbers', () => raw('{"__metadata__":{"a":1}}', 0), 'SY_CHECKPOINT_HEADER', /__metadata__/],
  ])('refuses %s', (_, make, code, message) => {
    const file = make()
    const error = refusal(() => readSafetensorsHeader(file))
    expect(error.code).toBe(code)
    expect(error.message).toMatch(message)
    expect(error.message).toContain(file)
    expect(error.remedy.length).toBeGreaterThan(10)
  })

  it('refuses a file that was cut after it was opened', () => {
    const dir = freshDir()
    writeSafetensors(join(dir, 'model.safetensors'), new Map([['w', f32(1, 2, 3)]]))
    const checkpoint = openCheckpoint(dir)
    truncateSync(join(dir, 'model.safetensors'), checkpoint.tensors.get('w')!.offset + 4)
    expect(refusal(() => checkpoint.read('w')).code).toBe('SY_CHECKPOINT_TRUNCATED')
    expect(refusal(() => checkpoint.read('nope')).code).toBe('SY_CHECKPOINT_NO_TENSOR')
  })

  it('says what is in a directory without safetensors', () => {
    const dir = freshDir()
    writeFileSync(join(dir, 'pytorch_model.bin'), '')
    expect(refusal(() => openCheckpoint(dir)).message).toContain('pytorch_model.bin')
    expect(refusal(() => openCheckpoint(join(dir, 'missing'))).message).toContain('no such directory')
  })
})

describe('shards', () => {
  function sharded(weightMap: unknown): string {
    const dir = freshDir()
    writeSafetensors(join(dir, 'model-00001-of-00002.safetensors'), new Map([['a', f32(1)]]))
    writeSafetensors(join(dir, 'model-00002-of-00002.safetensors'), new Map([['b', f32(2)]]))
    writeFileSync(join(dir, 'model.safetensors.index.json'), JSON.stringify({ metadata: {}, weight_map: weightMap }))
    return dir
  }
  const one = 'model-00001-of-00002.safetensors'
  const two = 'model-00002-of-00002.safetensors'

  it('reads tensors of all shards', () => {
    const checkpoint = openCheckpoint(sharded({ a: one, b: two }))
    expect(new Float32Array(checkpoint.read('b').slice().buffer)[0]).toBe(2)
  })

  it.each<[string, unknown, string, RegExp]>([
    ['a missing shard', { a: one, b: 'model-00003.safetensors' }, 'SY_CHECKPOINT_SHARD_MISSING', /model-00003.*hold b/],
    ['a tensor in the wrong shard', { a: two, b: two }, 'SY_CHECKPOINT_WRONG_SHARD', /tensor a: .*in no shard/],
    ['swapped shards', { a: two, b: one }, 'SY_CHECKPOINT_WRONG_SHARD', /tensor a: expected in model-00002.*00001/],
    ['a path out of the directory', { a: '../model.safetensors' }, 'SY_CHECKPOINT_INDEX', /\.\.\/model/],
    ['an absolute path', { a: '/etc/x.safetensors' }, 'SY_CHECKPOINT_INDEX', /etc/],
    ['a Windows path', { a: '..\\x.safetensors' }, 'SY_CHECKPOINT_INDEX', /x\.safetensors/],
    ['a shard that is a number', { a: 1 }, 'SY_CHECKPOINT_INDEX', /found 1/],
    ['no map', undefined, 'SY_CHECKPOINT_INDEX', /weight_map/],
    ['an empty map', {}, 'SY_CHECKPOINT_INDEX', /empty/],
  ])('refuses %s', (_, weightMap, code, message) => {
    const dir = sharded(weightMap)
    const error = refusal(() => openCheckpoint(dir))
    expect(error.code).toBe(code)
    expect(error.message).toMatch(message)
  })

  it('refuses a tensor that two shards hold', () => {
    const dir = sharded({ a: one, b: two })
    writeSafetensors(
      join(dir, two),
      new Map([
        ['a', f32(9)],
        ['b', f32(2)],
      ]),
    )
    expect(refusal(() => openCheckpoint(dir)).message).toMatch(/tensor a: expected in one shard only/)
  })
})
