// Loading with the real packer: every way a piece can address its tensor, FP8 scales, and all problems named at once.
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { unpack } from '../../../test/unpack.js'
import { e4m3ToNumber } from '../../device/cpu/number-formats.js'
import { ReferencePacker } from '../../device/cpu/packing.js'
import { f32View, HostMemoryLender, u16View } from '../../device/memory.js'
import { readModelSpec } from '../hf/index.js'
import {
  type Checkpoint,
  CheckpointError,
  openCheckpoint,
  type TensorToWrite,
  writeSafetensors,
} from '../safetensors/index.js'
import type { WeightPiece, WeightPlan } from '../weight-spec.js'
import { loadWeights } from './index.js'

let root: string
beforeAll(() => {
  root = mkdtempSync(join(tmpdir(), 'sy-loader-'))
})
afterAll(() => rmSync(root, { recursive: true, force: true }))

let serial = 0
function checkpointOf(tensors: Record<string, TensorToWrite>): Checkpoint {
  const dir = join(root, `c${serial++}`)
  mkdirSync(dir)
  writeSafetensors(join(dir, 'model.safetensors'), new Map(Object.entries(tensors)))
  return openCheckpoint(dir)
}

const packer = new ReferencePacker()
const load = (
  checkpoint: Checkpoint,
  plan: WeightPlan,
  fp8Block: readonly [number, number] | null = null,
  dtype: 'f32' | 'bf16' = 'f32',
) => loadWeights({ checkpoint, plan, dtype, packer, lender: new HostMemoryLender(), fp8Block })

const range = (count: number, from = 0): number[] => Array.from({ length: count }, (_, i) => from + i)
const f32 = (shape: number[], values = range(shape.reduce((a, b) => a * b, 1))): TensorToWrite => ({
  dtype: 'F32',
  shape,
  data: Float32Array.from(values),
})
const plan = (weights: WeightPlan['weights'], skip: (t: string) => boolean = () => false): WeightPlan => ({
  weights,
  skip,
})
const matrix = (n: number, k: number, ...pieces: WeightPiece[]): WeightPlan['weights'][number] => ({
  form: 'matrix',
  name: 'm',
  n,
  k,
  precision: 'model',
  pieces: [pieces],
})

async function refusal(run: Promise<unknown>): Promise<CheckpointError> {
  const error = await run.then(
    () => null,
    (e: unknown) => e,
  )
  expect(error).toBeInstanceOf(CheckpointError)
  return error as CheckpointError
}

describe('pieces', () => {
  const t34 = f32([3, 4])

  it('rows, columns, steps, transposes, stacks', async () => {
    const shape = [3, 4]
    const loaded = await load(
      checkpointOf({ a: t34, b: f32([3, 4], range(12, 100)) }),
      plan([
        { ...matrix(3, 4, { tensor: 'a', shape, rows: { from: 0, count: 3 } }), name: 'whole' },
        {
          ...matrix(2, 2, { tensor: 'a', shape, rows: { from: 0, count: 2, step: 2 }, columns: { from: 1, count: 2 } }),
          name: 'part',
        },
        { ...matrix(2, 3, { tensor: 'a', shape, rows: { from: 1, count: 2 }, transposed: true }), name: 'transposed' },
        {
          ...matrix(2, 2, {
            tensor: 'a',
            shape,
            rows: { from: 0, count: 2, step: 3 },
            columns: { from: 1, count: 2 },
            transposed: true,
          }),
          name: 'both',
        },
        {
          ...matrix(
            2,
            4,
            { tensor: 'b', shape, rows: { from: 2, count: 1 } },
            { tensor: 'a', shape, rows: { from: 1, count: 1 } },
          ),
          name: 'stack',
        },
      ]),
    )
    const of = (name: string) => unpack(loaded.matrices[name]!)
    expect(of('whole')).toEqual([range(4), range(4, 4), range(4, 8)])
    expect(of('part')).toEqual([
      [1, 2],
      [9, 10],
    ])
    expect(of('transposed')).toEqual([
      [1, 5, 9],
      [2, 6, 10],
    ])
    expect(of('both')).toEqual([
      [4, 8],
      [7, 11],
    ])
    expect(of('stack')).toEqual([range(4, 108), range(4, 4)])
    expect(loaded.spans).toHaveLength(5)
  })

  it('slices of stacked experts, gate and up interleaved, as gpt-oss stores them', async () => {
    const shape = [2, 3, 4]
    const piece = (slice: number, from: number): WeightPiece => ({
      tensor: 'e',
      shape,
      slice,
      rows: { from, count: 2, step: 2 },
      transposed: true,
    })
    const loaded = await load(
      checkpointOf({ e: f32(shape), bias: f32([2, 4]) }),
      plan([
        {
          form: 'matrix',
          name: 'gate_up',
          n: 4,
          k: 3,
          precision: 'model',
          pieces: [0, 1].map(e => [piece(e, 0), piece(e, 1)]),
        },
        {
          form: 'vector',
          name: 'bias',
          length: 4,
          pieces: [0, 1].map(from => ({ tensor: 'bias', shape: [2, 4], slice: 1, rows: { from, count: 2, step: 2 } })),
        },
      ]),
    )
    const expert = loaded.matrices['gate_up']!
    expect(unpack(expert, 0)).toEqual([
      [0, 4, 8],
      [2, 6, 10],
      [1, 5, 9],
      [3, 7, 11],
    ])
    expect(unpack(expert, 1)[3]).toEqual([15, 19, 23])
    expect([...f32View(loaded.vectors['bias']!.span).subarray(0, 4)]).toEqual([4, 6, 5, 7])
  })

  it('F16 and BF16 sources, bf16 targets, f32 where the plan says so', async () => {
    const tensors = {
      half: { dtype: 'F16', shape: [2], data: Uint16Array.of(0x3c00, 0xc100) },
      brain: { dtype: 'BF16', shape: [1, 2], data: Uint16Array.of(0x3f80, 0xc040) },
    }
    const piece: WeightPiece = { tensor: 'brain', shape: [1, 2], rows: { from: 0, count: 1 } }
    const loaded = await load(
      checkpointOf(tensors),
      plan([
        { form: 'vector', name: 'v', length: 2, pieces: [{ tensor: 'half', shape: [2], rows: { from: 0, count: 2 } }] },
        { form: 'matrix', name: 'model', n: 1, k: 2, precision: 'model', pieces: [[piece]] },
        { form: 'matrix', name: 'router', n: 1, k: 2, precision: 'f32', pieces: [[piece]] },
      ]),
      null,
      'bf16',
    )
    expect([...f32View(loaded.vectors['v']!.span).subarray(0, 2)]).toEqual([1, -2.5])
    expect(loaded.matrices['model']!.kind).toBe('bf16')
    expect([...u16View(loaded.matrices['model']!.span).subarray(0, 2)]).toEqual([0x3f80, 0xc040])
    expect(unpack(loaded.matrices['router']!)).toEqual([[1, -3]])
  })

  it('F8 with block scales, also cut and transposed', async () => {
    const data = Uint8Array.from(range(15).map(i => 0x30 + i))
    const scales = [2, 3, 5, 7]
    const tensors = { w: { dtype: 'F8_E4M3', shape: [3, 5], data }, w_scale_inv: f32([2, 2], scales) }
    const brain = { dtype: 'BF16', shape: [2, 2], data: Uint16Array.of(0x4000, 0x4040, 0x40a0, 0x40e0) }
    const shape = [3, 5]
    const value = (r: number, c: number): number =>
      Math.fround(e4m3ToNumber(data[r * 5 + c]!) * scales[Math.floor(r / 2) * 2 + Math.floor(c / 4)]!)
    const cut = { tensor: 'w', shape, rows: { from: 3, count: 2 }, columns: { from: 1, count: 2 }, transposed: true }
    const wanted = plan([
      { ...matrix(3, 5, { tensor: 'w', shape, rows: { from: 0, count: 3 } }), name: 'whole' },
      { ...matrix(2, 2, cut), name: 'cut' },
    ])
    for (const source of [tensors, { ...tensors, w_scale_inv: brain }]) {
      const loaded = await load(checkpointOf(source), wanted, [2, 4])
      expect(unpack(loaded.matrices['whole']!)).toEqual([0, 1, 2].map(r => range(5).map(c => value(r, c))))
      expect(unpack(loaded.matrices['cut']!)).toEqual([3, 4].map(c => [1, 2].map(r => value(r, c))))
    }
  })

  it('reports packed bytes and lets the event loop run between weights', async () => {
    const whole = { tensor: 'a', shape: [3, 4], rows: { from: 0, count: 3 } }
    const seen: [number, number][] = []
    let turns = 0
    let loading = true
    const count = (): void => {
      turns++
      if (loading) setImmediate(count)
    }
    setImmediate(count)
    await loadWeights({
      checkpoint: checkpointOf({ a: t34 }),
      plan: plan(range(5).map(i => ({ ...matrix(3, 4, whole), name: `m${i}` }))),
      dtype: 'f32',
      packer,
      lender: new HostMemoryLender(),
      fp8Block: null,
      onProgress: (done, total) => seen.push([done, total]),
    })
    loading = false
    expect(seen.map(([done]) => done)).toEqual(range(6).map(i => i * 256))
    expect(new Set(seen.map(([, total]) => total))).toEqual(new Set([1280]))
    expect(turns).toBeGreaterThanOrEqual(4)
  })
})

describe('refusals', () => {
  const w: WeightPiece = { tensor: 'w', shape: [3, 5], rows: { from: 0, count: 3 } }
  const f8 = { dtype: 'F8_E4M3', shape: [3, 5], data: new Uint8Array(15) }
  it.each<[string, Record<string, TensorToWrite>, readonly [number, number] | null, RegExp]>([
    ['missing', { other: f32([1]) }, null, /missing tensor w: expected \[3, 5\]; unknown tensor other \(F32 \[1\]\)/],
    ['another shape', { w: f32([5, 3]) }, null, /tensor w: expected \[3, 5\], found \[5, 3\]/],
    [
      'another type',
      { w: { dtype: 'I32', shape: [3, 5], data: new Int32Array(15) } },
      null,
      /expected F32, .*found I32/,
    ],
    ['FP8 without a config', { w: f8, w_scale_inv: f32([1, 1]) }, null, /no quantization_config/],
    ['FP8 without scales', { w: f8 }, [128, 128], /missing tensor w_scale_inv: expected F32 \[1, 1\]/],
    [
      'scales of another shape',
      { w: f8, w_scale_inv: f32([1, 2]) },
      [128, 128],
      /w_scale_inv: expected F32 or BF16 \[1, 1\], found F32 \[1, 2\]/,
    ],
    [
      'scales of a plain weight',
      { w: f32([3, 5]), w_scale_inv: f32([1, 1]) },
      [128, 128],
      /unknown tensor w_scale_inv/,
    ],
    ['scales of nothing', { w: f32([3, 5]), x_scale_inv: f32([1, 1]) }, [128, 128], /unknown tensor x_scale_inv/],
  ])('%s', async (_, tensors, block, message) => {
    const lender = new HostMemoryLender()
    const checkpoint = checkpointOf(tensors)
    const error = await refusal(
      loadWeights({ checkpoint, plan: plan([matrix(3, 5, w)]), dtype: 'f32', packer, lender, fp8Block: block }),
    )
    expect(error.code).toBe('SY_CHECKPOINT_WEIGHTS')
    expect(error.message).toMatch(message)
    expect(error.message).toContain(checkpoint.dir)
    expect(lender.lent).toBe(0)
  })

  it('FP8 in a vector', async () => {
    const vector = plan([
      { form: 'vector', name: 'v', length: 2, pieces: [{ tensor: 'v', shape: [2], rows: { from: 0, count: 2 } }] },
    ])
    const error = await refusal(
      load(checkpointOf({ v: { dtype: 'F8_E4M3', shape: [2], data: new Uint8Array(2) } }), vector, [128, 128]),
    )
    expect(error.message).toMatch(/matrices only/)
  })

  it('lists the first ten of many, and keeps them all', async () => {
    const tensors = Object.fromEntries(range(25).map(i => [`extra.${i}`, f32([1])]))
    const error = await refusal(load(checkpointOf(tensors), plan([])))
    expect(error.message).toMatch(/25 of its weights .*and 15 more/)
    expect((error.fields['all'] as string[]).length).toBe(25)
  })

  it('skips what the plan skips, and knows tensors of other shards', async () => {
    const tensors = { w: f32([3, 5]), skipped: f32([1]), other: f32([2, 2]) }
    const mine = plan([matrix(3, 5, w)], name => name === 'skipped')
    const others = plan([matrix(2, 2, { tensor: 'other', shape: [2, 2], rows: { from: 0, count: 2 } })])
    const checkpoint = checkpointOf(tensors)
    const options = { checkpoint, plan: mine, dtype: 'f32' as const, packer, fp8Block: null }
    expect((await refusal(loadWeights({ ...options, lender: new HostMemoryLender() }))).message).toMatch(
      /unknown tensor other/,
    )
    const loaded = await loadWeights({ ...options, lender: new HostMemoryLender(), otherPlans: [others] })
    expect(Object.keys(loaded.matrices)).toEqual(['m'])
  })
})

describe('real checkpoints', () => {
  /** One weight a tensor. */
  const planOfAll = (checkpoint: Checkpoint): WeightPlan =>
    plan(
      [...checkpoint.tensors]
        .filter(([tensor]) => !tensor.endsWith('_scale_inv'))
        .map(([tensor, { shape }]) => {
          const piece = { tensor, shape, rows: { from: 0, count: shape[0]! } }
          return shape.length === 1
            ? { form: 'vector', name: tensor, length: shape[0]!, pieces: [piece] }
            : { form: 'matrix', name: tensor, n: shape[0]!, k: shape[1]!, precision: 'model', pieces: [[piece]] }
        }),
    )

  it('a fixture, every element', async () => {
    const checkpoint = openCheckpoint('test/fixtures/checkpoints/deepseek_v3')
    const loaded = await load(checkpoint, planOfAll(checkpoint))
    for (const [name, matrix] of Object.entries(loaded.matrices))
      expect(unpack(matrix).flat()).toEqual([...new Float32Array(checkpoint.read(name).slice().buffer)])
    expect(Object.keys(loaded.vectors)).toHaveLength(15)
  })

  it('the demo: FP8 blocks of 128 × 128, half the bytes in bf16', async () => {
    const { spec } = readModelSpec('models/demo')
    const checkpoint = openCheckpoint('models/demo')
    const whole = planOfAll(checkpoint)
    const few = plan(
      whole.weights.filter(w => /layers\.0\.(mlp|self_attn)/.test(w.name)),
      () => true,
    )
    const loaded = await load(checkpoint, few, spec.fp8Block)
    const name = 'model.layers.0.mlp.down_proj.weight'
    const raw = checkpoint.read(name)
    const scales = new Float32Array(checkpoint.read(`${name}_scale_inv`).slice().buffer)
    const rows = unpack(loaded.matrices[name]!)
    for (const [r, c] of [
      [0, 0],
      [127, 127],
      [128, 128],
      [255, 767],
      [3, 400],
    ] as const)
      expect(rows[r]![c]).toBe(
        Math.fround(e4m3ToNumber(raw[r * 768 + c]!) * scales[Math.floor(r / 128) * 6 + Math.floor(c / 128)]!),
      )
    const half = await load(checkpoint, few, spec.fp8Block, 'bf16')
    expect(half.bytes / loaded.bytes).toBeLessThan(0.51)
    expect((await refusal(load(checkpoint, whole, null))).message).toMatch(/found F8_E4M3, but config\.json has no/)
  })
})
