// Packing into a GPU's own memory: the same bytes as into host memory, whatever way they take there; and made-up weights,
// which must be the numbers that the host makes.
import { afterAll, describe, expect, it } from 'vitest'
import { bf16ToNumber, roundToBf16 } from '../../src/device/cpu/number-formats.js'
import { ReferencePacker } from '../../src/device/cpu/packing.js'
import { f32View, HostMemoryLender, type MemoryLender } from '../../src/device/memory.js'
import type { PackedMatrix, Packer, PackSource, WeightKind } from '../../src/device/ops.js'
import { noise } from '../../src/device/suite/bench.suite.js'
import { planModel } from '../../src/engine/load-model.js'
import { loadDummyWeights, loadWeights } from '../../src/formats/loader/index.js'
import { openCheckpoint } from '../../src/formats/safetensors/index.js'
import { flagsFor } from '../engine/harness.js'
import { toBf16 } from '../number-encoding.js'
import { unpack } from '../unpack.js'
import { openDevice } from './device.js'

const device = openDevice()
const lender = device.createLender()
afterAll(() => lender[Symbol.dispose]())

const stored = (kind: WeightKind, v: number): number => (kind === 'bf16' ? bf16ToNumber(roundToBf16(v)) : v)

/** Element [r, c] of matrix i of a matrix in the GPU's memory. */
function reader(m: PackedMatrix): (i: number, r: number, c: number) => number {
  const bytes = new Uint8Array(m.count * m.strideBytes)
  device.kernels.stream.synchronize()
  device.context.download(bytes, device.kernels.addressOf(m.span))
  if (m.kind === 'f32') {
    const f = new Float32Array(bytes.buffer)
    return (i, r, c) => f[(i * m.strideBytes) / 4 + r * m.k + c]!
  }
  const h = new Uint16Array(bytes.buffer)
  return (i, r, c) => bf16ToNumber(h[(i * m.strideBytes) / 2 + r * m.k + c]!)
}

const target = (
  packer: Packer,
  from: MemoryLender,
  kind: WeightKind,
  n: number,
  k: number,
  count = 2,
): PackedMatrix => {
  const strideBytes = packer.packedBytes(kind, n, k)
  return { kind, n, k, count, strideBytes, span: from.lend(count * strideBytes, 'test') }
}

describe('packing', () => {
  const [rows, columns] = [70, 96]
  const next = noise(1)
  const f32 = Float32Array.from({ length: rows * columns }, next)
  const bf16 = new Uint16Array(f32.length).map((_, i) => new Uint32Array(f32.buffer)[i]! >>> 16)
  const f8 = new Uint8Array(f32.length).map((_, i) => (i * 37) % 127)
  const bytes = (view: ArrayBufferView) => new Uint8Array(view.buffer, view.byteOffset, view.byteLength)
  const straight = { offset: 0, strideN: columns, strideK: 1 }
  const scales = {
    values: Float32Array.from({ length: 5 * 6 }, noise(2)),
    blockRows: 16,
    blockCols: 16,
    columns: 6,
    sourceColumns: columns,
  }
  const sources: [string, PackSource, number, number][] = [
    ['F32 straight', { dtype: 'F32', bytes: bytes(f32), ...straight }, rows, columns],
    ['BF16 straight', { dtype: 'BF16', bytes: bytes(bf16), ...straight }, rows, columns],
    ['columns of BF16', { dtype: 'BF16', bytes: bytes(bf16), ...straight, offset: 32 }, rows, 64],
    ['transposed F32', { dtype: 'F32', bytes: bytes(f32), offset: 3, strideN: 1, strideK: columns }, 90, rows],
    [
      'every other row of BF16',
      { dtype: 'BF16', bytes: bytes(bf16), offset: columns, strideN: 2 * columns, strideK: 1 },
      35,
      columns,
    ],
    ['F8 with scales', { dtype: 'F8_E4M3', bytes: bytes(f8), ...straight, scales }, rows, columns],
    [
      'F8 transposed',
      { dtype: 'F8_E4M3', bytes: bytes(f8), offset: 0, strideN: 1, strideK: columns, scales },
      columns,
      rows,
    ],
  ]

  describe.each(['f32', 'bf16'] as const)('into %s', kind => {
    it.each(sources)('%s', (_, source, n, k) => {
      const there = target(device.packer, lender, kind, n + 2, k)
      device.packer.packMatrix(there, 1, 2, n, source)
      const reference = new ReferencePacker()
      const here = target(reference, new HostMemoryLender(), 'f32', n + 2, k)
      reference.packMatrix(here, 1, 2, n, source)
      const at = reader(there)
      const wide = unpack(here, 1)
      for (let r = 0; r < n + 2; r++)
        for (let c = 0; c < k; c++) {
          const want = stored(kind, wide[r]![c]!)
          if (!Object.is(at(1, r, c) + 0, want + 0)) expect.fail(`[${r}, ${c}]: ${at(1, r, c)}, expected ${want}`)
          if (at(0, r, c) !== 0) expect.fail('matrix 0 was written')
        }
    })
  })

  it('vectors go there and come back', () => {
    const vector = { length: 10, span: lender.lend(64, 'test') }
    device.packer.packVector(vector, 2, 5, { dtype: 'BF16', bytes: bytes(bf16), offset: 1, strideN: 3, strideK: 0 })
    const wide = (i: number) => bf16ToNumber(bf16[i]!)
    const values = [...device.packer.vectorValues(vector)]
    expect(values).toEqual([0, 0, ...[0, 1, 2, 3, 4].map(i => wide(1 + 3 * i)), 0, 0, 0])
  })
})

describe('uploads through pinned memory, and by the driver', () => {
  // More than both buffers hold, twice over: in one piece it goes by the driver. As F32 also more than is converted at once.
  const [rows, columns] = [9000, 2600]
  const next = noise(3)
  const values = Float32Array.from({ length: rows * columns }, next)
  const source = (view: ArrayBufferView, dtype: 'F32' | 'BF16') => ({
    dtype,
    bytes: new Uint8Array(view.buffer, view.byteOffset, view.byteLength),
    ...{ offset: 0, strideN: columns, strideK: 1 },
  })
  const large = target(device.packer, lender, 'f32', rows, columns, 1)
  const small = target(device.packer, lender, 'bf16', rows, columns, 1)
  const isSame = (found: ArrayBufferView, expected: ArrayBufferView): boolean => {
    const [a, b] = [found, expected].map(v => Buffer.from(v.buffer, v.byteOffset, v.byteLength))
    return a!.equals(b!)
  }
  const fetch = <T extends ArrayBufferView>(into: T, m: PackedMatrix): T => {
    device.packer.settle()
    device.context.download(into, device.kernels.addressOf(m.span))
    return into
  }

  it('straight, in one piece and row by row: every byte in its place', () => {
    const whole = values.slice()
    device.packer.packMatrix(large, 0, 0, rows, source(whole, 'F32'))
    whole.fill(Number.NaN)
    expect(isSame(fetch(new Float32Array(values.length), large), values)).toBe(true)
    // Pieces of many sizes, from a source that changes at once.
    const turned = values.map(v => -v)
    for (let row = 0, step = 1; row < rows; row += step, step = Math.min(1 + ((7 * step) % 500), rows - row)) {
      const piece = turned.slice(row * columns, (row + step) * columns)
      device.packer.packMatrix(large, 0, row, step, source(piece, 'F32'))
      piece.fill(Number.NaN)
    }
    expect(isSame(fetch(new Float32Array(values.length), large), turned)).toBe(true)
  })

  it('converted, pieces after pieces through one stage', () => {
    const narrow = Uint16Array.from(values, toBf16)
    device.packer.packMatrix(small, 0, 0, rows, source(values, 'F32'))
    device.packer.packMatrix(large, 0, 0, rows, source(narrow, 'BF16'))
    expect(isSame(fetch(new Uint16Array(values.length), small), narrow)).toBe(true)
    const wide = Float32Array.from(narrow, bf16ToNumber)
    expect(isSame(fetch(new Float32Array(values.length), large), wide)).toBe(true)
  })

  it.each(['f32', 'bf16'] as const)('a checkpoint in block FP8, as %s: the numbers of the host', async dtype => {
    const flags = flagsFor('models/demo', { dtype: dtype === 'f32' ? 'float32' : 'bfloat16' })
    const reference = new ReferencePacker()
    const { spec, weightPlaces, directory } = planModel(flags, {
      ...{ packer: reference, memoryLimit: Number.POSITIVE_INFINITY, requireMemory: () => {} },
    })
    const { plan } = weightPlaces[0]!.weights
    const common = { plan, checkpoint: openCheckpoint(directory), fp8Block: spec.fp8Block }
    expect(spec.fp8Block).not.toBeNull()
    const there = await loadWeights({ ...common, dtype, packer: device.packer, lender })
    const here = await loadWeights({ ...common, dtype: 'f32', packer: reference, lender: new HostMemoryLender() })
    const names = Object.keys(here.matrices).filter((_, i) => i % 5 === 0)
    expect(names.length).toBeGreaterThan(5)
    for (const name of names) {
      const at = reader(there.matrices[name]!)
      const { kind } = there.matrices[name]!
      unpack(here.matrices[name]!, 0).forEach((row, r) => {
        const wrong = row.findIndex((v, c) => at(0, r, c) !== stored(kind, v))
        if (wrong >= 0) expect.fail(`${name} [${r}, ${wrong}]: ${at(0, r, wrong)}, expected ${row[wrong]}`)
      })
    }
    for (const [name, vector] of Object.entries(here.vectors))
      expect(device.packer.vectorValues(there.vectors[name]!)).toEqual(f32View(vector.span).slice(0, vector.length))
  })
})

describe('made-up weights', () => {
  it.each(['f32', 'bf16'] as const)('are those of the host, %s', async dtype => {
    const piece = (tensor: string, n: number, k: number) => ({ tensor, shape: [n, k], rows: { from: 0, count: n } })
    const plan = {
      skip: () => false,
      weights: [
        {
          form: 'matrix',
          name: 'm',
          n: 60,
          k: 48,
          precision: 'model',
          pieces: [[piece('a', 20, 48), piece('b', 40, 48)]],
        },
        {
          form: 'matrix',
          name: 'odd',
          n: 7,
          k: 13,
          precision: 'model',
          pieces: [[piece('c', 7, 13)], [piece('d', 7, 13)]],
        },
        {
          form: 'matrix',
          name: 'turned',
          n: 16,
          k: 24,
          precision: 'model',
          pieces: [
            [
              {
                tensor: 'e',
                shape: [100, 16],
                transposed: true,
                rows: { from: 0, count: 16 },
                columns: { from: 30, count: 24 },
              },
            ],
          ],
        },
        {
          form: 'vector',
          name: 'v',
          length: 5,
          pieces: [{ tensor: 'x.norm.weight', shape: [5], rows: { from: 0, count: 5 } }],
        },
      ],
    } as const
    const there = await loadDummyWeights({ plan, dtype, packer: device.packer, lender, seed: 9 })
    const reference = new ReferencePacker()
    const here = await loadDummyWeights({
      plan,
      dtype: 'f32',
      packer: reference,
      lender: new HostMemoryLender(),
      seed: 9,
    })
    for (const name of ['m', 'odd', 'turned']) {
      const [a, b] = [there.matrices[name]!, here.matrices[name]!]
      const at = reader(a)
      for (let i = 0; i < a.count; i++)
        unpack(b, i).forEach((row, r) => {
          expect(row.map((_, c) => at(i, r, c))).toEqual(row.map(v => stored(dtype, v)))
        })
    }
    expect([...device.packer.vectorValues(there.vectors['v']!)]).toEqual([1, 1, 1, 1, 1])
  })
})
