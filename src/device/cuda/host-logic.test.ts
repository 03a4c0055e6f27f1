// What the bindings decide without a GPU: argument layouts, where libraries are looked for, what is said when they are
// missing, buckets and alignments of products.

import { createRequire } from 'node:module'
import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { layOutArguments } from './arguments.js'
import { architectureOf, compileOptions, isHopperOnly } from './compiler.js'
import { adviceFor, CudaError, isContextLost } from './errors.js'
import { PinnedLender } from './host-memory.js'
import {
  type Koffi,
  type LibrarySearch,
  requireLibraries,
  searchFolders,
  searchLibraries,
  whatIsMissing,
} from './libraries.js'
import { alignmentOf, rowBucket } from './matmul-plan.js'
import { PackedMemory } from './packed-memory.js'
import type { ArgumentType } from './types.js'

describe('arguments lie as a compiler lays out parameters', () => {
  test('pointers on 8, tensor maps on 64', () => {
    const layout = layOutArguments(['i32', 'u64', 'f32', 'i32', 'u64', 'u32', 'tensorMap', 'f32'])
    expect(layout.offsets).toEqual([0, 8, 16, 20, 24, 32, 64, 192])
    expect(layout.byteLength).toBe(196)
  })

  test('no two overlap, each is aligned, none could lie earlier', () => {
    const size = { u64: 8, i32: 4, u32: 4, f32: 4, tensorMap: 128 }
    const alignment = { ...size, tensorMap: 64 }
    const kinds = fc.constantFrom<ArgumentType>('u64', 'i32', 'u32', 'f32', 'tensorMap')
    fc.assert(
      fc.property(fc.array(kinds, { maxLength: 20 }), types => {
        const { offsets, byteLength } = layOutArguments(types)
        let end = 0
        types.forEach((type, i) => {
          const offset = offsets[i]!
          expect(offset % alignment[type]).toBe(0)
          expect(offset - end).toBeGreaterThanOrEqual(0)
          expect(offset - end).toBeLessThan(alignment[type])
          end = offset + size[type]
        })
        expect(byteLength).toBe(end)
      }),
    )
  })
})

const koffi = createRequire(import.meta.url)('koffi') as Koffi

describe('packed memory', () => {
  test('is aligned, and the address is where the bytes are', () => {
    const memory = new PackedMemory(koffi, 24)
    expect(memory.address % 64).toBe(0)
    memory.u64(8, 0x7f_1234_5678_9a)
    expect(koffi.decode(BigInt(memory.address + 8), 'uint64_t')).toBe(0x7f_1234_5678_9a)
    expect(memory.getU64(8)).toBe(0x7f_1234_5678_9a)
    memory.f32(0, 1.5)
    expect(koffi.decode(BigInt(memory.address), 'float')).toBe(1.5)
  })

  test('u32 keeps the bits of negative numbers', () => {
    const memory = new PackedMemory(koffi, 8)
    memory.u32(0, -2)
    expect(memory.view.getInt32(0, true)).toBe(-2)
  })
})

describe('libraries', () => {
  const tree: Record<string, string[]> = {
    '/usr/local': ['bin', 'cuda-12.4', 'cuda', 'cuda-13.0', 'cuda-old'],
    '/venv/lib': ['python3.12'],
    '/venv/lib/python3.12/site-packages/nvidia': ['cu13', 'cublas'],
  }
  const list = (folder: string): string[] => tree[folder] ?? []

  test('folders named by the user come first, then the loader, newest toolkits, Python packages', () => {
    const folders = searchFolders(
      { SWITCHYARD_CUDA_PATH: '/mine:/yours', CUDA_HOME: '/home', PATH: '/bin:/venv/bin' },
      list,
    )
    expect(folders.slice(0, 3)).toEqual(['/mine', '/mine/lib64', '/mine/lib'])
    expect(folders.indexOf('/yours')).toBe(3)
    expect(folders.indexOf('/home/lib64')).toBeLessThan(folders.indexOf(''))
    expect(folders.indexOf('')).toBeLessThan(folders.indexOf('/usr/local/cuda-13.0/lib64'))
    expect(folders.indexOf('/usr/local/cuda-13.0/lib64')).toBeLessThan(folders.indexOf('/usr/local/cuda-12.4/lib64'))
    expect(folders).not.toContain('/usr/local/cuda-old/lib64')
    expect(folders.at(-2)).toBe('/venv/lib/python3.12/site-packages/nvidia/cu13/lib')
    expect(folders.at(-1)).toBe('/venv/lib/python3.12/site-packages/nvidia/cublas/lib')
  })

  test('GPUs can be hidden', () => {
    const search = searchLibraries({ SWITCHYARD_NO_CUDA: '1' })
    expect(whatIsMissing(search).missing).toContain('SWITCHYARD_NO_CUDA')
    expect(() => requireLibraries(search)).toThrow(CudaError)
  })

  test('without a driver only the driver is named; with one, every library that is missing', () => {
    const found = (kind: 'driver' | 'nvrtc' | 'cublaslt', there: boolean) => ({
      kind,
      path: there ? `/lib/${kind}` : null,
      handle: there ? koffi.load('libc.so.6') : null,
      reason: there ? '' : 'in no folder of the search',
    })
    const search = (driver: boolean, rest: boolean): LibrarySearch => ({
      koffi,
      koffiReason: '',
      found: { driver: found('driver', driver), nvrtc: found('nvrtc', rest), cublaslt: found('cublaslt', rest) },
    })
    expect(whatIsMissing(search(false, false)).missing).toMatch(/^libcuda\.so\.1 was not found \([^;]*\)$/)
    const { missing, fix } = whatIsMissing(search(true, false))
    expect(missing).toContain('libnvrtc')
    expect(missing).toContain('libcublasLt')
    expect(fix).toContain('SWITCHYARD_CUDA_PATH')
    expect(whatIsMissing(search(true, true))).toEqual({ missing: '', fix: '' })
    expect(requireLibraries(search(true, true)).nvrtc).toBeDefined()
    const error = catchError(() => requireLibraries(search(false, true)))
    expect(error.code).toBe('SY_CUDA_UNAVAILABLE')
    expect(error.remedy).toContain('--device cpu')
  })
})

describe('products', () => {
  test('a bucket holds the rows, wastes at most an eighth, and is its own bucket', () => {
    for (let rows = 1; rows <= 20_000; rows++) {
      const bucket = rowBucket(rows)
      if (bucket < rows || rowBucket(bucket) !== bucket || bucket - rows > rows / 4) expect.fail(`${rows} → ${bucket}`)
      if (rows > 16 && (bucket - rows) / bucket > 1 / 5) expect.fail(`${rows} → ${bucket}`)
    }
  })

  test('bigger row counts never get smaller buckets', () => {
    for (let rows = 2; rows <= 5000; rows++) expect(rowBucket(rows)).toBeGreaterThanOrEqual(rowBucket(rows - 1))
  })

  test('alignment is what address and rows share', () => {
    expect(alignmentOf(0x1000, 4096)).toBe(256)
    expect(alignmentOf(0x1010, 4096)).toBe(16)
    expect(alignmentOf(0x1000, 2 * 577)).toBe(2)
    expect(alignmentOf(0x1001, 4096)).toBe(1)
  })
})

describe('compilation', () => {
  test('Hopper gets its own architecture', () => {
    expect(architectureOf(90)).toBe('sm_90a')
    expect(architectureOf(80)).toBe('sm_80')
    expect(isHopperOnly('grouped_gemm_sm90.cu')).toBe(true)
    expect(isHopperOnly('norm.cu')).toBe(false)
  })

  test('macros come in one order whatever order they are given in', () => {
    const options = compileOptions(90, { defines: { WIDTH: 128, HEADS: 8 } })
    expect(options).toEqual(compileOptions(90, { defines: { HEADS: 8, WIDTH: 128 } }))
    expect(options.slice(-2)).toEqual(['-DHEADS=8', '-DWIDTH=128'])
    expect(options[0]).toBe('--gpu-architecture=sm_90a')
  })
})

test('pinned memory is lent out of few buffers, aligned, and never twice', () => {
  const lender = new PinnedLender(4096)
  const spans = [100, 64, 4000, 1, 9000].map(bytes => lender.lend(bytes, 'test'))
  expect(spans.map(span => span.byteLength)).toEqual([128, 64, 4032, 64, 9024])
  expect(new Set(spans.map(span => span.buffer)).size).toBe(3)
  expect(spans.every(span => span.byteOffset % 64 === 0)).toBe(true)
  expect(spans[1]!.byteOffset).toBe(128)
  expect(lender.lent).toBe(128 + 64 + 4032 + 64 + 9024)
})

test('only errors of a kernel end the use of a GPU', () => {
  expect([4, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 720].every(isContextLost)).toBe(true)
  expect([0, 1, 2, 100, 600, 701, 704, 708, 712, 713, 801, 999].some(isContextLost)).toBe(false)
})

test('every failed call comes with advice', () => {
  for (const number of [1, 2, 3, 35, 100, 209, 222, 700, 710, 719, 802, 999, 12345])
    expect(adviceFor(number)).toMatch(/\.$/)
  for (const number of [700, 714, 719]) expect(adviceFor(number)).toContain('compute-sanitizer')
  expect(adviceFor(701)).not.toContain('Restart')
})

function catchError(run: () => unknown): CudaError {
  try {
    run()
  } catch (error) {
    if (error instanceof CudaError) return error
    throw error
  }
  return expect.fail('nothing was thrown')
}
