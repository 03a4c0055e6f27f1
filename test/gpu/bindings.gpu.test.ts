// The bindings on a GPU: memory, launches, events, graphs, failures that are named.
import { Worker } from 'node:worker_threads'
import { describe, expect, test } from 'vitest'
import { CudaContext } from '../../src/device/cuda/context.js'
import { CudaError } from '../../src/device/cuda/errors.js'
import { DriverEvent } from '../../src/device/cuda/event.js'
import { PinnedLender } from '../../src/device/cuda/host-memory.js'
import { timeOnDevice } from '../../src/device/cuda/measure.js'
import { DeviceArenaLender } from '../../src/device/cuda/memory.js'
import { StreamUploads } from '../../src/device/cuda/staged-upload.js'
import { DriverStream } from '../../src/device/cuda/stream.js'
import { i32View, subspan } from '../../src/device/memory.js'
import { drive } from '../../src/runtime/wait.js'
import { openGpu } from './gpu.js'

// The last test ends the context.
const gpu = openGpu({ spoiled: true })
const { context, kernels } = gpu
const { stream } = kernels
const add = (out: number, from: number, value: number, n: number) =>
  kernels.kernel('probe.cu', 'probe_add').bind(['u64', 'u64', 'i32', 'i32'], [out, from, value, n])
const catchError = (run: () => unknown): CudaError => {
  try {
    run()
  } catch (error) {
    if (error instanceof CudaError) return error
    throw error
  }
  return expect.fail('nothing was thrown')
}

describe('the GPU', () => {
  test('says what it is', () => {
    const { name, capability, sms, sharedBytesPerBlock, l2Bytes, memoryBytes } = context.properties
    expect(name).not.toBe('')
    expect(capability).toBeGreaterThanOrEqual(80)
    expect(sms).toBeGreaterThan(10)
    expect(sharedBytesPerBlock).toBeGreaterThanOrEqual(99 << 10)
    expect(l2Bytes).toBeGreaterThan(1 << 20)
    const { free, total } = context.memory()
    expect(free).toBeLessThanOrEqual(total)
    expect(total).toBeLessThanOrEqual(memoryBytes)
  })

  test('a GPU that is not there is named', () => {
    expect(catchError(() => new CudaContext(99)).code).toBe('SY_CUDA_NO_DEVICE')
  })
})

describe('memory', () => {
  test('is zeroed, aligned, and keeps what is written', () => {
    const lender = new DeviceArenaLender(context, 1 << 20)
    const a = lender.lend(1000, 'a')
    const b = lender.lend(10, 'b')
    expect(a.byteLength).toBe(1024)
    expect(kernels.addressOf(b)).toBe(kernels.addressOf(a) + 1024)
    const back = new Uint8Array(1024).fill(9)
    context.download(back, kernels.addressOf(a))
    expect(back.every(byte => byte === 0)).toBe(true)
    const bytes = Uint8Array.from({ length: 1000 }, (_, i) => i & 255)
    context.upload(kernels.addressOf(a), bytes)
    context.download(back, kernels.addressOf(a))
    expect(back.subarray(0, 1000)).toEqual(bytes)
    // Larger than what is left: an arena of its own.
    const big = lender.lend(3 << 20, 'big')
    expect(big.byteLength).toBe(3 << 20)
    expect(lender.lent).toBe(1024 + 1024 + (3 << 20))
    lender[Symbol.dispose]()
  })

  test('small views, which the collector could move, arrive too', () => {
    const address = gpu.at(new Uint8Array([1, 2, 3]))
    expect([...gpu.read(new Uint8Array(3), address)]).toEqual([1, 2, 3])
  })

  test('more than there is names what it was for', () => {
    const error = catchError(() => context.allocate(2 ** 50, 'the test'))
    expect(error.code).toBe('SY_CUDA_OUT_OF_MEMORY')
    expect(error.message).toContain('the test')
    // Nothing is spoiled by it.
    expect([...gpu.read(new Uint8Array(1), gpu.at(new Uint8Array([5])))]).toEqual([5])
  })

  test('host memory is read and written by kernels in place', () => {
    const lender = new PinnedLender(1 << 16)
    const spans = [lender.lend(400, 'in'), lender.lend(400, 'out')]
    i32View(spans[0]!).set(Array.from({ length: 100 }, (_, i) => i))
    add(kernels.addressOf(spans[1]!), kernels.addressOf(spans[0]!), 1000, 100).launch([1, 1, 1], 128)
    stream.synchronize()
    expect([...i32View(spans[1]!).subarray(0, 100)]).toEqual(Array.from({ length: 100 }, (_, i) => i + 1000))
  })

  test('small buffers of their own, which share pages, are registered too', () => {
    const spans = Array.from({ length: 8 }, (_, i) => {
      const buffer = new SharedArrayBuffer(128)
      new Int32Array(buffer).fill(i)
      return { buffer, byteOffset: 0, byteLength: 128 }
    })
    for (const span of spans)
      add(kernels.addressOf(subspan(span, 64, 64)), kernels.addressOf(span), 100, 16).launch([1, 1, 1], 32)
    stream.synchronize()
    expect(spans.map(span => i32View(span)[20])).toEqual([100, 101, 102, 103, 104, 105, 106, 107])
  })

  test('pinned memory goes up and down on the stream', () => {
    const lender = new PinnedLender(1 << 16)
    const [from, to] = [lender.lend(4096, 'from'), lender.lend(4096, 'to')]
    i32View(from!).set(Array.from({ length: 1024 }, (_, i) => i * 3))
    const device = gpu.zeros(4096)
    const second = gpu.zeros(4096)
    stream.upload(device, kernels.hostAddressOf(from!), 4096)
    stream.copy(second, device, 4096)
    stream.fill(device, 0, 4096)
    stream.download(kernels.hostAddressOf(to!), second, 4096)
    stream.synchronize()
    expect(i32View(to!)).toEqual(i32View(from!))
    expect(gpu.read(new Int32Array(1024), device).every(value => value === 0)).toBe(true)
  })

  test('scratch of one purpose is shared, and grows', () => {
    const first = kernels.workspace(1000, 'test scratch')
    expect(kernels.workspace(500, 'test scratch')).toBe(first)
    expect(kernels.workspace(500, 'other scratch')).not.toBe(first)
    expect(kernels.workspace(1 << 20, 'test scratch')).not.toBe(first)
  })
})

describe('launches', () => {
  test('every kind of argument arrives', () => {
    const out = gpu.zeros(32)
    const launch = kernels
      .kernel('probe.cu', 'probe_arguments')
      .bind(['u64', 'i32', 'f32', 'u64', 'u32', 'f32'], [out, 0, 0, 0, 0, 0])
    launch.set(1, -7)
    launch.set(2, 2.5)
    launch.set(3, 5 * 2 ** 32 + 77)
    launch.set(4, 0x8001_0000)
    launch.set(5, -0.25)
    launch.launch([2, 3, 4], [5, 6, 7])
    expect([...gpu.read(new Float32Array(8), out)]).toEqual([-7, 2.5, 5, 77, 0x8001, -0.25, 234, 567])
  })

  test('arguments may change as soon as a launch is queued', () => {
    const n = 64
    const from = gpu.at(new Int32Array(n))
    const outs = [gpu.zeros(n * 4), gpu.zeros(n * 4), gpu.zeros(n * 4)]
    const launch = add(outs[0]!, from, 0, n)
    outs.forEach((out, i) => {
      launch.set(0, out)
      launch.set(2, i + 1)
      launch.launch([1, 1, 1], n)
    })
    expect(outs.map(out => gpu.read(new Int32Array(n), out)[n - 1])).toEqual([1, 2, 3])
  })

  test('shared memory beyond 48 KiB is allowed as it is asked for', () => {
    const out = gpu.zeros(4)
    const words = (96 << 10) / 4
    const shared = kernels.kernel('probe.cu', 'probe_shared')
    shared.bind(['u64', 'i32'], [out, words]).launch([1, 1, 1], 256, words * 4)
    expect(gpu.read(new Int32Array(1), out)[0]).toBe((words * (words - 1)) / 2)
    expect(shared.blocksPerSm(256, words * 4)).toBeGreaterThanOrEqual(1)
    expect(shared.localBytes).toBe(0)
    expect(shared.registers).toBeGreaterThan(0)
  })

  test('a file that is asked for twice is loaded once', () => {
    expect(kernels.kernel('probe.cu', 'probe_add')).toBe(kernels.kernel('probe.cu', 'probe_add'))
    expect(kernels.kernel('probe.cu', 'probe_add', { defines: { X: 1 } })).not.toBe(
      kernels.kernel('probe.cu', 'probe_add'),
    )
  })

  test('a kernel that does not exist, a grid that is impossible', () => {
    expect(catchError(() => kernels.kernel('probe.cu', 'probe_gone')).code).toBe('SY_CUDA_NO_KERNEL')
    const nothing = kernels.kernel('probe.cu', 'probe_nothing').bind([], [])
    const error = catchError(() => nothing.launch([1, 1, 1], 4096))
    expect(error.code).toBe('SY_CUDA_CALL')
    expect(error.message).toContain('probe_nothing')
    nothing.launch([1, 1, 1], 32)
    stream.synchronize()
  })
})

describe('events', () => {
  const delay = (out: number, value: number, microseconds: number) =>
    kernels
      .kernel('probe.cu', 'probe_delay')
      .bind(['u64', 'i32', 'i32'], [out, value, microseconds])
      .launch([1, 1, 1], 1)

  test('are done when what was queued before is, and not before', () => {
    const out = gpu.zeros(4)
    delay(out, 42, 200_000)
    using event = stream.record()
    expect(event.done).toBe(false)
    let sleeps = 0
    drive(event.wait(), { spins: 100 }, () => sleeps++)
    expect(event.done).toBe(true)
    expect(sleeps).toBeGreaterThan(0)
    expect(gpu.read(new Int32Array(1), out)[0]).toBe(42)
  })

  test('hold back another stream', () => {
    using other = new DriverStream(context)
    const out = gpu.zeros(4)
    const copy = gpu.zeros(4)
    delay(out, 7, 20_000)
    using event = stream.record()
    other.waitFor(event)
    other.copy(copy, out, 4)
    other.synchronize()
    expect(gpu.read(new Int32Array(1), copy)[0]).toBe(7)
  })

  test('measure', () => {
    const out = gpu.zeros(4)
    const { medianUs, runs } = timeOnDevice(context, stream, 5, () => delay(out, 1, 3000))
    expect(runs).toBe(5)
    expect(medianUs).toBeGreaterThan(2900)
  })
})

describe('graphs', () => {
  test('repeat what was captured, with the arguments of then', () => {
    const n = 256
    const values = gpu.at(new Int32Array(n))
    const launch = add(values, values, 1, n)
    using graph = stream.capture(() => {
      launch.launch([2, 1, 1], 128)
      launch.set(2, 10)
      launch.launch([2, 1, 1], 128)
    })
    expect(graph.nodes).toBe(2)
    launch.set(2, 1000)
    // Capturing runs nothing.
    expect(gpu.read(new Int32Array(n), values)[0]).toBe(0)
    for (let i = 0; i < 3; i++) graph.launch()
    expect(gpu.read(new Int32Array(n), values).every(value => value === 33)).toBe(true)
  })

  test('hold copies, fills and events', () => {
    const lender = new PinnedLender(4096)
    const host = lender.lend(64, 'host')
    const device = gpu.zeros(64)
    const back = lender.lend(64, 'back')
    using event = new DriverEvent(context, true)
    using graph = stream.capture(() => {
      stream.upload(device, kernels.hostAddressOf(host), 64)
      add(device, device, 1, 16).launch([1, 1, 1], 32)
      stream.download(kernels.hostAddressOf(back), device, 64)
      event.record(stream)
    })
    for (const value of [5, 6]) {
      i32View(host).fill(value)
      graph.launch()
      stream.synchronize()
      expect(event.done).toBe(true)
      expect(i32View(back)[15]).toBe(value + 1)
    }
  })

  test('a capture that throws leaves the stream usable', () => {
    const values = gpu.at(new Int32Array(32))
    const launch = add(values, values, 1, 32)
    expect(() =>
      stream.capture(() => {
        launch.launch([1, 1, 1], 32)
        throw new Error('changed my mind')
      }),
    ).toThrow('changed my mind')
    expect(stream.capturing).toBe(false)
    launch.launch([1, 1, 1], 32)
    expect(gpu.read(new Int32Array(32), values)[0]).toBe(1)
  })
})

test('memory of the main thread is memory of a worker', async () => {
  const values = gpu.at(Int32Array.from({ length: 64 }, (_, i) => i))
  const dist = new URL('../../dist/device/cuda/', import.meta.url).href
  const worker = new Worker(
    `const { parentPort, workerData: { dist, ordinal, address } } = require('node:worker_threads')
     Promise.all([import(dist + 'context.js'), import(dist + 'kernels.js')]).then(([{ CudaContext }, { StreamKernels }]) => {
       const kernels = new StreamKernels(new CudaContext(ordinal))
       kernels.kernel('probe.cu', 'probe_add').bind(['u64', 'u64', 'i32', 'i32'], [address, address, 1000, 64]).launch([1, 1, 1], 64)
       kernels.stream.synchronize()
       kernels[Symbol.dispose]()
       parentPort.postMessage('done')
     })`,
    { eval: true, workerData: { dist, ordinal: context.properties.ordinal, address: values } },
  )
  await new Promise((resolve, reject) => worker.on('message', resolve).on('error', reject))
  await worker.terminate()
  expect(gpu.read(new Int32Array(64), values)[63]).toBe(1063)
})

// Last: nothing on this GPU works in this process after it.
test('a kernel that reads where nothing is ends with advice, which giving back does not hide', () => {
  const out = gpu.zeros(4)
  const uploads = [new StreamUploads(context, stream), new StreamUploads(context, stream)]
  for (const each of uploads) each.upload(out, new Uint8Array(4))
  kernels.kernel('probe.cu', 'probe_read').bind(['u64', 'u64'], [out, 16]).launch([1, 1, 1], 1)
  const error = catchError(() => stream.synchronize())
  expect(error.code).toBe('SY_CUDA_CALL')
  expect(error.fields['name']).toBe('CUDA_ERROR_ILLEGAL_ADDRESS')
  expect(error.remedy).toContain('compute-sanitizer')
  uploads[0]![Symbol.dispose]()
  expect(catchError(() => uploads[1]!.release()).code).toBe('SY_CUDA_CALL')
  uploads[1]!.release()
})
