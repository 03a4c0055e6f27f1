// Tensor maps and bulk copies (sm_90): where elements of a box lie in shared memory, what lies outside the array, stores.
import { describe, expect, test } from 'vitest'
import type { TensorMapSpec } from '../../src/device/cuda/types.js'
import { openGpu } from './gpu.js'

const gpu = openGpu()
const { kernels, context } = gpu

/**
 * Where element (row, column) of a box of 64 bf16 columns lies with 128-byte swizzle: the 16-byte piece of a row is exchanged
 * by the row's number modulo 8 (PTX ISA, tensor swizzling modes).
 */
const swizzled = (row: number, column: number): number => {
  const piece = (column >> 3) ^ (row & 7)
  return row * 64 + piece * 8 + (column & 7)
}

const ROWS = 40
const COLUMNS = 200
const matrix = Uint16Array.from({ length: ROWS * COLUMNS }, (_, i) => i + 1)

const spec = (address: number, boxRows: number, swizzle: TensorMapSpec['swizzle']): TensorMapSpec => ({
  address,
  dtype: 'bf16',
  sizes: [COLUMNS, ROWS],
  strides: [COLUMNS * 2],
  box: [64, boxRows],
  swizzle,
})

describe.skipIf(context.properties.capability !== 90)('bulk copies', () => {
  test.each([
    ['in the middle', 64, 8, '128B'],
    ['across two edges', 160, 32, '128B'],
    ['before the array', -32, -8, '128B'],
    ['unswizzled', 64, 8, 'none'],
  ] as const)('a box %s', (_, x, y, swizzle) => {
    const boxRows = 16
    const address = gpu.at(matrix)
    const out = gpu.zeros(boxRows * 128)
    const map = kernels.tensorMap(spec(address, boxRows, swizzle))
    kernels
      .kernel('probe_sm90.cu', 'probe_tensor_map')
      .bind(['tensorMap', 'i32', 'i32', 'i32', 'u64'], [map, x, y, boxRows, out])
      .launch([1, 1, 1], 128, boxRows * 128 + 1024)
    const got = gpu.read(new Uint16Array(boxRows * 64), out)
    for (let r = 0; r < boxRows; r++) {
      for (let c = 0; c < 64; c++) {
        const inside = x + c >= 0 && x + c < COLUMNS && y + r >= 0 && y + r < ROWS
        const want = inside ? matrix[(y + r) * COLUMNS + x + c] : 0
        const at = swizzle === '128B' ? swizzled(r, c) : r * 64 + c
        if (got[at] !== want) expect.fail(`row ${r}, column ${c}: ${got[at]} instead of ${want}`)
      }
    }
  })

  test('a stored box writes what lies inside the array', () => {
    const boxRows = 16
    const address = gpu.zeros(matrix.byteLength)
    const map = kernels.tensorMap(spec(address, boxRows, '128B'))
    const [x, y] = [160, 32]
    kernels
      .kernel('probe_sm90.cu', 'probe_tensor_store')
      .bind(['tensorMap', 'i32', 'i32', 'i32'], [map, x, y, boxRows])
      .launch([1, 1, 1], 128, boxRows * 128 + 1024)
    const got = gpu.read(new Uint16Array(ROWS * COLUMNS), address)
    for (let r = 0; r < ROWS; r++)
      for (let c = 0; c < COLUMNS; c++) {
        const inBox = c >= x && c < x + 64 && r >= y && r < y + boxRows
        const want = inBox ? swizzled(r - y, c - x) + 1 : 0
        if (got[r * COLUMNS + c] !== want)
          expect.fail(`row ${r}, column ${c}: ${got[r * COLUMNS + c]} instead of ${want}`)
      }
  })

  test('three dimensions', () => {
    const [depth, rows] = [5, 8]
    const volume = Uint16Array.from({ length: depth * rows * 64 }, (_, i) => i + 1)
    const address = gpu.at(volume)
    const map = kernels.tensorMap({
      address,
      dtype: 'bf16',
      sizes: [64, rows, depth],
      strides: [128, rows * 128],
      box: [64, rows, 1],
      swizzle: 'none',
    })
    const out = gpu.zeros(rows * 128)
    kernels
      .kernel('probe_sm90.cu', 'probe_tensor_map_3d')
      .bind(['tensorMap', 'i32', 'i32', 'u64'], [map, 3, rows, out])
      .launch([1, 1, 1], 128, rows * 128 + 1024)
    expect(gpu.read(new Uint16Array(rows * 64), out)).toEqual(volume.subarray(3 * rows * 64, 4 * rows * 64))
  })

  test('programmatic launches keep their order, alone and in a graph', () => {
    const out = gpu.zeros(4)
    const launch = kernels.kernel('probe_sm90.cu', 'probe_successor').bind(['u64'], [out], { programmatic: true })
    for (let i = 0; i < 1000; i++) launch.launch([132, 1, 1], 128)
    expect(gpu.read(new Int32Array(1), out)[0]).toBe(1000)
    using graph = kernels.stream.capture(() => {
      for (let i = 0; i < 200; i++) launch.launch([132, 1, 1], 128)
    })
    graph.launch()
    expect(gpu.read(new Int32Array(1), out)[0]).toBe(1200)
  })

  test('a map that the hardware cannot have is refused', () => {
    expect(() => kernels.tensorMap({ ...spec(gpu.zeros(64), 16, '128B'), strides: [COLUMNS * 2 + 2] })).toThrow(
      'cuTensorMapEncodeTiled',
    )
  })
})
