// The CPU device around its kernels: which kernels are chosen and why, file mappings, aligned memory, probes, and use
// from several workers at once.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Worker } from 'node:worker_threads'
import { afterAll, describe, expect, it } from 'vitest'
import { f32View, HostMemoryLender, hostBuffer } from '../memory.js'
import { ADDON_PATH, createCpuDevice, loadAddon } from './index.js'
import { fileMapper } from './mapping.js'

const directory = mkdtempSync(join(tmpdir(), 'switchyard-device-'))
afterAll(() => rmSync(directory, { recursive: true, force: true }))
const { addon } = loadAddon()

describe('choice of kernels', () => {
  it('runs the reference when asked, without a warning', () => {
    const device = createCpuDevice({ kernels: 'reference' })
    expect(device.kernels).toMatchObject({ kind: 'reference', isa: 'none' })
    expect(device.kernels.warning).toBeUndefined()
    expect(device.multiplyAddRate()).toBeUndefined()
  })

  it('says why the addon cannot be used', () => {
    expect(loadAddon(join(directory, 'absent.node')).missing).toMatch(/does not exist/)
    const broken = join(directory, 'broken.node')
    writeFileSync(broken, 'not a library')
    expect(loadAddon(broken).missing).toMatch(/does not load/)
  })

  it.skipIf(!addon)('takes the best instruction set, or the one it is told to', () => {
    const isas = addon!.isas()
    expect(createCpuDevice({ kernels: 'native' }).kernels.available).toEqual(isas)
    for (const isa of isas) expect(createCpuDevice({ isa }).ops.name).toBe(`native ${isa}`)
    process.env['SWITCHYARD_CPU_ISA'] = isas[0]!
    expect(createCpuDevice().kernels.isa).toBe(isas[0])
    delete process.env['SWITCHYARD_CPU_ISA']
    expect(() => createCpuDevice({ isa: 'mmx' })).toThrow(
      expect.objectContaining({ code: 'SY_DEVICE_UNKNOWN_ISA', remedy: expect.stringContaining(isas[0]!) }),
    )
  })
})

describe.each([
  ['mapped', addon],
  ['read', undefined],
])('file ranges, %s', (kind, withAddon) => {
  const map = fileMapper(withAddon)
  const path = join(directory, `file-${kind}`)
  const bytes = Uint8Array.from({ length: 20000 }, (_, i) => (i * 31) % 251)
  writeFileSync(path, bytes)

  it.each([
    [0, 20000],
    [1, 1],
    [4095, 4098],
    [8192, 100],
    [19999, 1],
    [5, 0],
  ])('%i + %i', (offset, length) => {
    const got = map(path, offset, length)
    expect(Buffer.compare(got, bytes.subarray(offset, offset + length))).toBe(0)
  })

  it('refuses ranges beyond the file, absent files and directories', () => {
    const unreadable = expect.objectContaining({ code: 'SY_DEVICE_UNREADABLE_FILE' })
    expect(() => map(path, 19999, 2)).toThrow(unreadable)
    expect(() => map(join(directory, 'absent'), 0, 1)).toThrow(unreadable)
    expect(() => map(directory, 0, 1)).toThrow(unreadable)
    expect(() => map(path, -1, 4)).toThrow(unreadable)
  })
})

describe('memory', () => {
  const device = createCpuDevice()

  it('maps a whole file', () => {
    const path = join(directory, 'whole')
    writeFileSync(path, 'hello')
    expect(Buffer.from(device.mapFile(path)).toString()).toBe('hello')
    expect(() => device.mapFile(join(directory, 'absent'))).toThrow(
      expect.objectContaining({ code: 'SY_DEVICE_UNREADABLE_FILE' }),
    )
  })

  it.skipIf(!addon)('lends zeroed spans on cache lines', () => {
    const lender = device.createLender()
    for (const bytes of [1, 64, 1000, 1 << 16, 9 << 20]) {
      const span = lender.lend(bytes, 'test')
      expect(addon!.addressOf(new Uint8Array(hostBuffer(span), span.byteOffset, 1)) % 64).toBe(0)
      expect(span.byteLength).toBeGreaterThanOrEqual(bytes)
      expect(span.byteOffset + span.byteLength).toBeLessThanOrEqual(hostBuffer(span).byteLength)
      expect(f32View(span).every(x => x === 0)).toBe(true)
    }
    expect(lender.lent).toBeGreaterThanOrEqual(9 << 20)
  })

  it('measures this core', () => {
    const span = new HostMemoryLender().lend(1 << 20, 'probe')
    for (const kernels of ['auto', 'reference'] as const)
      expect(createCpuDevice({ kernels }).readBandwidth(span)).toBeGreaterThan(0)
  })
})

describe.skipIf(!addon)('workers', () => {
  it('run kernels of one addon on one memory at the same time, and survive each other', async () => {
    const rows = 200
    const memory = new SharedArrayBuffer(4 * rows * 16)
    const source = `
      const { workerData, parentPort } = require('node:worker_threads')
      const addon = require(workerData.path)
      const { memory, part, parts, rows } = workerData
      const view = new Uint8Array(memory, 0, 1)
      const row = [addon.addressOf(view), memory.byteLength, part * 16 * (rows / parts), 16]
      const add = addon.bind(addon.isas().length - 1, 3, Float64Array.from([16, ...row, ...row, ...row]))
      const f = new Float32Array(memory)
      f.fill(1, part * 16 * (rows / parts), (part + 1) * 16 * (rows / parts))
      for (let i = 0; i < 10; i++) add(rows / parts)
      parentPort.postMessage('done')
    `
    const parts = 4
    await Promise.all(
      Array.from({ length: parts }, async (_, part) => {
        const worker = new Worker(source, { eval: true, workerData: { path: ADDON_PATH, memory, part, parts, rows } })
        await new Promise((resolve, reject) => {
          worker.once('message', resolve)
          worker.once('error', reject)
        })
        await worker.terminate()
      }),
    )
    expect(new Float32Array(memory).every(x => x === 1024)).toBe(true)
  })

  it('keep the memory behind a bound kernel alive', () => {
    const device = createCpuDevice({ kernels: 'native' })
    const kernels = Array.from({ length: 50 }, () => {
      const span = new HostMemoryLender().lend(1 << 20, 'test')
      const o = { span, offset: 0, stride: 1024 }
      return device.ops.add({ out: o, a: o, b: o, width: 1024 })
    })
    for (let i = 0; i < 50; i++) new Uint8Array(1 << 22).fill(i)
    for (const k of kernels) expect(() => k(256)).not.toThrow()
  })
})
