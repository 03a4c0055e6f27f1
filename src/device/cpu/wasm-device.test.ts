// The WebAssembly device around its kernels: when it is chosen, its one memory and the limit of it, and use from several
// workers at once.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Worker } from 'node:worker_threads'
import { afterAll, afterEach, describe, expect, it } from 'vitest'
import { f32View, HostMemoryLender, hostBuffer, type MemorySpan } from '../memory.js'
import type { PackedMatrix, PackSource } from '../ops.js'
import { createCpuDevice, WASM_LENDABLE } from './index.js'
import { ReferencePacker } from './packing.js'
import { wasmIsas } from './wasm-isa.js'
import { createWasmNode, WasmKernels } from './wasm-kernels.js'
import { WasmMemoryLender } from './wasm-memory.js'
import { WasmPacker } from './wasm-packer.js'

const directory = mkdtempSync(join(tmpdir(), 'switchyard-wasm-'))
const hidden = process.env['SWITCHYARD_NO_ADDON']
afterAll(() => rmSync(directory, { recursive: true, force: true }))
afterEach(() => {
  if (hidden === undefined) delete process.env['SWITCHYARD_NO_ADDON']
  else process.env['SWITCHYARD_NO_ADDON'] = hidden
})

const device = createCpuDevice({ kernels: 'wasm' })

describe('choice', () => {
  it('runs WebAssembly when asked, without a warning', () => {
    const available = wasmIsas()
    expect(device.name).toBe(`cpu (wasm ${available.at(-1)})`)
    expect(device.kernels).toMatchObject({ kind: 'wasm', isa: available.at(-1), available })
    expect(device.kernels.warning).toBeUndefined()
    expect(device.memoryLimit).toBe(WASM_LENDABLE)
  })

  it('runs the instruction set it is told to, and passes over those of native kernels', () => {
    for (const isa of wasmIsas()) expect(createCpuDevice({ kernels: 'wasm', isa }).name).toBe(`cpu (wasm ${isa})`)
    expect(createCpuDevice({ kernels: 'wasm', isa: 'avx2' }).name).toBe(device.name)
  })

  // Node 20.19 and later have them, behind a switch or not. If this fails, only the base kernels are tested there.
  it('finds fused multiply-adds', () => expect(wasmIsas()).toEqual(['simd128', 'relaxed-simd']))

  it('runs WebAssembly when the addon cannot be loaded, and says why', () => {
    process.env['SWITCHYARD_NO_ADDON'] = '1'
    const { kernels } = createCpuDevice()
    expect(kernels.kind).toBe('wasm')
    expect(kernels.reason).toMatch(/SWITCHYARD_NO_ADDON/)
    expect(kernels.warning).toMatch(/WebAssembly/)
    expect(() => createCpuDevice({ kernels: 'native' })).toThrow(
      expect.objectContaining({ code: 'SY_DEVICE_NO_NATIVE_KERNELS' }),
    )
  })

  it('refuses a module that is absent or broken', () => {
    const broken = join(directory, 'broken.wasm')
    writeFileSync(broken, 'not a module')
    for (const path of [broken, join(directory, 'absent.wasm')])
      expect(() => createWasmNode({ path })).toThrow(expect.objectContaining({ code: 'SY_DEVICE_NO_WASM_KERNELS' }))
  })
})

describe('memory', () => {
  it('lends zeroed spans of one memory that do not overlap, also between growths of instances', () => {
    const node = createWasmNode()
    const lender = new WasmMemoryLender(node.memory)
    const spans: MemorySpan[] = []
    for (const bytes of [1, 64, 1000, 65536, 65537, 1 << 20, 3, 300_000]) {
      spans.push(lender.lend(bytes, 'test'))
      if (bytes === 1000 || bytes === 1 << 20) new WasmKernels(node)
    }
    for (const [i, span] of spans.entries()) {
      expect(span.byteOffset % 64).toBe(0)
      expect(f32View(span).every(x => x === 0)).toBe(true)
      f32View(span).fill(i + 1)
    }
    for (const [i, span] of spans.entries()) expect(f32View(span).every(x => x === i + 1)).toBe(true)
    expect(lender.lent).toBe(spans.reduce((sum, s) => sum + s.byteLength, 0))
    expect(node.memory.buffer.byteLength).toBeLessThan(3 << 20)
  })

  it('says what was needed when the limit is exceeded, before and while it lends', () => {
    const full = expect.objectContaining({
      code: 'SY_DEVICE_WASM_MEMORY_FULL',
      message: expect.stringMatching(/3\.94 GiB.*the weights of big.*5\.00 GiB/),
      remedy: expect.stringContaining('npm rebuild'),
    })
    const node = createWasmNode()
    expect(() => device.requireMemory(5 * 2 ** 30, 'the weights of big')).toThrow(full)
    expect(() => new WasmMemoryLender(node.memory).lend(5 * 2 ** 30, 'the weights of big')).toThrow(full)
    const lender = new WasmMemoryLender(node.memory)
    // Pages that nobody touches cost nothing.
    lender.lend(3 * 2 ** 30, 'first')
    expect(() => lender.lend(2 ** 30, 'second')).toThrow(/second needs 1\.00 GiB beside the 3\.00 GiB/)
    expect(lender.lend(2 ** 28, 'third').byteOffset).toBeGreaterThanOrEqual(3 * 2 ** 30)
    // Above 2 GiB an offset does not fit a signed word.
    const far = lender.lend(4096, 'far')
    const kernels = new WasmKernels(node)
    expect(kernels.addressOf(new Uint8Array(hostBuffer(far), far.byteOffset, 1))).toBe(far.byteOffset)
    expect(kernels.take(64)).toBeGreaterThan(3 * 2 ** 30)
  })

  it('computes above 2 GiB', () => {
    const lender = device.createLender()
    lender.lend(2.2 * 2 ** 30, 'gap')
    const span = lender.lend(4 * 512, 'row')
    f32View(span).fill(1.5)
    const row = { span, offset: 0, stride: 256 }
    device.ops.add({ out: row, a: row, b: row, width: 256 })(2)
    expect(f32View(span).every(x => x === 3)).toBe(true)
  })

  it('refuses memory that is not its own', () => {
    const lent = new HostMemoryLender().lend(1 << 20, 'test')
    const row = { span: lent, offset: 0, stride: 16 }
    expect(() => device.ops.copy({ out: row, x: row, width: 16 })).toThrow(/createLender/)
    const other = createCpuDevice({ kernels: 'wasm' })
      .createLender()
      .lend(1 << 20, 'test')
    expect(() => device.ops.copy({ out: { ...row, span: other }, x: row, width: 16 })).toThrow(/createLender/)
  })

  it('measures this core', () => {
    expect(device.readBandwidth(device.createLender().lend(1 << 20, 'probe'))).toBeGreaterThan(0)
    expect(device.multiplyAddRate()).toBeGreaterThan(0)
  })
})

describe('packing in pieces', () => {
  // Pieces of 2 KiB, so that they begin inside blocks of scales and panels.
  const packer = new WasmPacker(new WasmKernels(device.wasmNode!), 2048)
  const [rows, columns, blockRows, blockCols] = [180, 120, 16, 10]
  const bytes = Uint8Array.from({ length: rows * columns }, (_, i) => (i * 37 + (i >> 8)) % 0x78)
  const scaleColumns = columns / blockCols
  const scales = {
    values: Float32Array.from({ length: Math.ceil(rows / blockRows) * scaleColumns }, (_, i) => 0.5 + (i % 17) / 16),
    blockRows,
    blockCols,
    columns: scaleColumns,
    sourceColumns: columns,
  }

  it.each([
    ['straight', rows - 3, columns - 7, { offset: 2 * columns + 5, strideN: columns, strideK: 1 }],
    ['every other row', rows / 2, columns, { offset: columns, strideN: 2 * columns, strideK: 1 }],
    ['transposed', columns - 1, rows - 40, { offset: 35 * columns + 1, strideN: 1, strideK: columns }],
  ])('%s', (_, n, k, at) => {
    const source: PackSource = { dtype: 'F8_E4M3', bytes, scales, ...at }
    const strideBytes = device.packer.packedBytes('bf16', n + 8, k)
    const target = (span: MemorySpan): PackedMatrix => ({ kind: 'bf16', n: n + 8, k, count: 1, strideBytes, span })
    const mine = device.createLender().lend(strideBytes, 'weights')
    const reference = new HostMemoryLender().lend(strideBytes, 'weights')
    packer.packMatrix(target(mine), 0, 5, n, source)
    new ReferencePacker().packMatrix(target(reference), 0, 5, n, source)
    const bytesOf = (s: MemorySpan) => Buffer.from(hostBuffer(s), s.byteOffset, strideBytes)
    expect(bytesOf(mine).equals(bytesOf(reference))).toBe(true)
  })
})

describe('workers', () => {
  it('run kernels of one module on one memory at the same time', async () => {
    const [parts, rows, width] = [4, 50, 64]
    const node = createWasmNode()
    const span = new WasmMemoryLender(node.memory).lend(4 * parts * rows * width, 'rows')
    f32View(span).fill(1)
    const file = new URL('../../../dist/device/cpu/index.js', import.meta.url)
    const source = `
      const { workerData: { file, wasmNode, span, part, rows, width }, parentPort } = require('node:worker_threads')
      import(file).then(({ createCpuDevice }) => {
        const { ops } = createCpuDevice({ kernels: 'wasm', wasmNode })
        const row = { span, offset: part * rows * width, stride: width }
        const double = ops.add({ out: row, a: row, b: row, width })
        for (let i = 0; i < 10; i++) double(rows)
        parentPort.postMessage('done')
      })
    `
    await Promise.all(
      Array.from({ length: parts }, async (_, part) => {
        const workerData = { file: file.href, wasmNode: node, span, part, rows, width }
        const worker = new Worker(source, { eval: true, workerData })
        await new Promise((resolve, reject) => {
          worker.once('message', resolve)
          worker.once('error', reject)
        })
        await worker.terminate()
      }),
    )
    expect(f32View(span).every(x => x === 1024)).toBe(true)
  })
})
