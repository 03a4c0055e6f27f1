// Attention of any widths (attention_any_mma.cu, attention_any_lanes.cu): shapes, types and places that no other kernel takes, and the promise
// that a row's bits depend on its own sequence only.
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { anyAttention, anyKernelOf } from '../../src/device/cuda/ops/attention-any.js'
import { checkFaults, FAULT_BYTES, faultAddress } from '../../src/device/cuda/ops/faults.js'
import type { Operand } from '../../src/device/ops.js'
import { type AttentionCase, attentionCases, run, Setting } from './attention.suite.js'
import { Gpu } from './gemm.suite.js'

const demo = { heads: 8, kvHeads: 1, qkWidth: 80, vWidth: 64, pageSize: 16 }
const single = (count: number, longest: number): [number, number][] =>
  Array.from({ length: count }, (_, s) => [s, (s * 7919 + 512) % longest])
/** Many rows of a few sequences. */
const mingled = (count: number, sequences: number, longest: number): [number, number][] =>
  Array.from({ length: count }, (_, i) => [i % sequences, (i * 331 + 512) % longest])
const idle: [number, number][] = [
  [0, 90],
  [-1, 4],
  [1, 33],
  [0, -1],
  [-1, -1],
  [0, 0],
]
const blocks = (count: number) => ({ blocks: () => count })

const SHAPES: readonly Omit<AttentionCase, 'name' | 'rows'>[] = [
  { ...demo, heads: 20 },
  { ...demo, heads: 6, qkWidth: 40, vWidth: 32, pageSize: 7 },
  { ...demo, heads: 6, qkWidth: 40, vWidth: 32, pad: 3 },
  { ...demo, heads: 12, kvHeads: 4, qkWidth: 96, vWidth: 96 },
  { ...demo, heads: 8, kvHeads: 8, qkWidth: 80, vWidth: 80, pageSize: 1 },
  { ...demo, heads: 16, kvHeads: 2, qkWidth: 128, vWidth: 128, pad: 4 },
  { ...demo, heads: 4, kvHeads: 4, qkWidth: 192, vWidth: 128, apart: true },
  { ...demo, heads: 16, kvHeads: 2, qkWidth: 256, vWidth: 256, pageSize: 128 },
  { ...demo, heads: 3, qkWidth: 19, vWidth: 7, apart: true, pad: 1 },
  { ...demo, heads: 5, qkWidth: 18, vWidth: 30, pad: 2 },
  { ...demo, heads: 4, kvHeads: 2, qkWidth: 320, vWidth: 512 },
  { ...demo, heads: 6, qkWidth: 576, vWidth: 512, pad: 1 },
  { ...demo, heads: 2, qkWidth: 1001, vWidth: 1024, pad: 5 },
]

describe('the latent of the demo', () => {
  attentionCases([
    { ...demo, name: 'one row', rows: [[0, 479]] },
    { ...demo, name: 'one key', rows: [[0, 0]] },
    { ...demo, name: 'one long row', rows: [[0, 2999]] },
    { ...demo, name: 'a row of more than 64 parts of 256', rows: [[0, 17000]] },
    { ...demo, name: '32 rows', rows: single(32, 3000) },
    { ...demo, name: '128 rows', rows: single(128, 600) },
    { ...demo, name: '600 rows, one block each', rows: mingled(600, 3, 1500) },
    { ...demo, name: '600 rows of longer sequences', rows: mingled(600, 2, 3000) },
    { ...demo, name: 'one block a row', rows: single(9, 3000), options: blocks(1) },
    { ...demo, name: 'more blocks than parts', rows: single(9, 900), options: blocks(40) },
    { ...demo, name: 'idle rows', rows: idle },
    { ...demo, name: 'window and sinks', window: 300, sinks: true, rows: single(8, 900) },
    { ...demo, name: 'a window of three', window: 3, rows: run(0, 0, 100) },
    { ...demo, name: 'a prompt', rows: run(0, 0, 300) },
    { ...demo, name: 'chunks and single rows', rows: [...run(0, 200, 60), [1, 700], ...run(2, 0, 33), ...idle] },
  ])
})

describe.each(['bf16', 'f32'] as const)('other shapes, %s', type => {
  attentionCases(
    SHAPES.map(s => ({
      ...{ ...s, type, window: 500, sinks: true, rows: [...idle, ...single(4, 1500), ...run(0, 3, 4)] },
      name: `${s.heads} heads of ${s.qkWidth} and ${s.vWidth} over ${s.kvHeads}, pages of ${s.pageSize}, pads of ${s.pad ?? 8}`,
    })),
  )
})

describe('bits of a row', () => {
  let gpu: Gpu
  beforeAll(() => {
    gpu = new Gpu()
  })
  afterAll(() => gpu[Symbol.dispose]())

  const rows: [number, number][] = [...mingled(60, 5, 1100), ...run(0, 250, 12), ...idle, [0, 1999]]

  it.each<[string, Omit<AttentionCase, 'name' | 'rows'>]>([
    ['bf16', demo],
    ['f32', { ...demo, type: 'f32' }],
    ['bf16 of 192 and 128', { ...demo, heads: 4, kvHeads: 4, qkWidth: 192, vWidth: 128, apart: true }],
    ['f32 of odd widths', { ...demo, qkWidth: 19, vWidth: 7, apart: true, pad: 1, type: 'f32' }],
  ])('%s: the same alone, in halves of the batch, and by any number of blocks', (_, shape) => {
    const setting = new Setting(gpu, { ...shape, name: '', rows, sinks: true })
    const { spec } = setting
    const from = (o: Operand, r: number): Operand => ({ ...o, offset: o.offset + r * o.stride })
    const bound = (first: number, count?: number) =>
      anyAttention(
        gpu.kernels,
        {
          ...{ ...spec, out: from(spec.out, first), q: from(spec.q, first) },
          batch: {
            ...spec.batch,
            rowSequence: from(spec.batch.rowSequence, first),
            positions: from(spec.batch.positions, first),
          },
        },
        count === undefined ? {} : blocks(count),
      )!
    bound(0)(rows.length)
    const all = setting.read()
    setting.compare(all)
    const again = (what: string, queue: () => void): void => {
      gpu.kernels.stream.fill(gpu.address(spec.out.span), 0xff, setting.resultBytes)
      queue()
      expect(setting.read(), what).toEqual(all)
    }
    for (const count of [1, 2, 3, 12]) again(`${count} blocks`, () => bound(0, count)(rows.length))
    again('alone', () => {
      for (let r = 0; r < rows.length; r++) bound(r)(1)
    })
    again('halves', () => {
      bound(0)(31)
      bound(31)(rows.length - 31)
    })
  })

  it('are those of a captured graph after sequences have grown', () => {
    const setting = new Setting(gpu, { ...demo, name: '', rows: single(16, 900) })
    const kernel = anyAttention(gpu.kernels, setting.spec)!
    const { positions } = setting.spec.batch
    const count = 16
    const write = (of: (position: number) => number): void =>
      gpu.context.upload(
        gpu.address(positions.span),
        Int32Array.from(single(count, 900), r => of(r[1])),
      )
    write(p => Math.floor(p / 3))
    using graph = gpu.kernels.stream.capture(() => kernel(count))
    graph.launch()
    gpu.kernels.stream.synchronize()
    write(p => p)
    graph.launch()
    setting.compare(setting.read())
  })

  it('needs no local memory: nothing spills', () => {
    for (const type of ['bf16', 'f32'] as const)
      for (const shape of SHAPES) {
        const { file, name, defines } = anyKernelOf(
          gpu.kernels,
          new Setting(gpu, { ...shape, type, name: '', rows: [[0, 5]] }).spec,
        )!
        const { localBytes, registers } = gpu.kernels.kernel(file, name, { defines })
        expect(localBytes, `${registers} registers, ${JSON.stringify(defines)}`).toBe(0)
      }
  })
})

it('names a page that is none, and a position beyond the table', () => {
  using gpu = new Gpu()
  const faultOf = (change: (setting: Setting) => void): void => {
    const setting = new Setting(gpu, { ...demo, name: '', rows: single(3, 600) })
    change(setting)
    anyAttention(gpu.kernels, setting.spec)!(3)
    const words = new Int32Array(gpu.read(new Float32Array(FAULT_BYTES / 4), faultAddress(gpu.kernels)).buffer)
    expect(() => checkFaults(words)).toThrow(/page \d+ lies outside/)
    gpu.kernels.stream.fill(faultAddress(gpu.kernels), 0, FAULT_BYTES)
  }
  const set = (o: Operand, value: number): void => gpu.context.upload(gpu.address(o.span), Int32Array.of(value))
  faultOf(s => set(s.spec.batch.pageTable, 1 << 20))
  faultOf(s => set(s.spec.batch.positions, 1 << 18))
})
