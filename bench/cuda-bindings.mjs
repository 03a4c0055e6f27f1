// What the way from TypeScript to a GPU costs: launches, graphs, events, copies, a product by cuBLASLt. Host times are of the
// call itself, queued work going on meanwhile; device times lie between events. Medians.
//   npm run build && node bench/cuda-bindings.mjs [--json]
// Needs an NVIDIA GPU with driver, NVRTC and cuBLASLt: `switchyard doctor` says what is missing.
import { closeSync, mkdtempSync, openSync, readSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { parseArgs } from 'node:util'
import { createCpuDevice } from '../dist/device/cpu/index.js'
import { CudaContext } from '../dist/device/cuda/context.js'
import { PinnedLender } from '../dist/device/cuda/host-memory.js'
import { StreamKernels } from '../dist/device/cuda/kernels.js'
import { medianOf, timeOnDevice } from '../dist/device/cuda/measure.js'
import { StagedUploads, StreamUploads } from '../dist/device/cuda/staged-upload.js'

const { values: options } = parseArgs({ options: { json: { type: 'boolean', default: false } } })
const context = new CudaContext(0)
const kernels = new StreamKernels(context)
const { stream } = kernels
const results = []
const add = (what, figure, unit) => results.push({ what, figure: Number(figure.toPrecision(3)), unit })

/** Median microseconds of one call on the host; the stream is emptied between rounds so that its queue never fills. */
function hostCost(call, calls = 500, rounds = 20) {
  const times = Array.from({ length: rounds }, () => {
    const started = performance.now()
    for (let i = 0; i < calls; i++) call(i)
    const each = ((performance.now() - started) * 1000) / calls
    stream.synchronize()
    return each
  })
  return medianOf(times.sort((a, b) => a - b))
}

const nothing = kernels.kernel('probe.cu', 'probe_nothing').bind([], [])
const numbers = kernels.workspace(1 << 20, 'bench')
const increment = kernels
  .kernel('probe.cu', 'probe_add')
  .bind(['u64', 'u64', 'i32', 'i32'], [numbers, numbers, 1, 1024])
add(
  'launch without arguments, host',
  hostCost(() => nothing.launch([1, 1, 1], 32)),
  'µs',
)
add(
  'set one argument and launch, host',
  hostCost(i => {
    increment.set(2, i)
    increment.launch([4, 1, 1], 256)
  }),
  'µs',
)
add(
  'launch after launch, device',
  timeOnDevice(context, stream, 20, () => increment.launch([4, 1, 1], 256), { inner: 200 }).medianUs,
  'µs',
)

for (const nodes of [1, 100, 500]) {
  const graph = stream.capture(() => {
    for (let i = 0; i < nodes; i++) increment.launch([4, 1, 1], 256)
  })
  add(
    `graph of ${nodes} kernels, host`,
    hostCost(() => graph.launch(), 20),
    'µs',
  )
  add(
    `graph of ${nodes} kernels, device, a kernel`,
    timeOnDevice(context, stream, 20, () => graph.launch()).medianUs / nodes,
    'µs',
  )
  graph[Symbol.dispose]()
}
if (context.properties.capability === 90) {
  const successor = kernels.kernel('probe_sm90.cu', 'probe_successor')
  for (const programmatic of [false, true]) {
    const launch = successor.bind(['u64'], [numbers], { programmatic })
    const graph = stream.capture(() => {
      for (let i = 0; i < 500; i++) launch.launch([132, 1, 1], 128)
    })
    const { medianUs } = timeOnDevice(context, stream, 20, () => graph.launch())
    add(
      `graph of 500 kernels of 132 blocks, ${programmatic ? 'programmatic' : 'plain'}, a kernel`,
      medianUs / 500,
      'µs',
    )
    graph[Symbol.dispose]()
  }
}

const event = stream.record()
add(
  'ask an event, host',
  hostCost(() => event.done),
  'µs',
)
add(
  'record an event, host',
  hostCost(() => event.record(stream)),
  'µs',
)

const pinned = new PinnedLender(256 << 20)
const host = pinned.lend(256 << 20, 'bench')
const hostAddress = kernels.hostAddressOf(host)
const device = context.allocate(256 << 20, 'bench')
const other = context.allocate(256 << 20, 'bench')
add(
  'queue a copy of 4 KiB up, host',
  hostCost(() => stream.upload(device, hostAddress, 4096)),
  'µs',
)
const roundTrip = () => {
  stream.upload(device, hostAddress, 4096)
  increment.launch([4, 1, 1], 256)
  stream.download(hostAddress, device, 4096)
  event.record(stream)
  while (!event.done);
}
add('4 KiB up, a kernel, 4 KiB down, seen by polling', hostCost(roundTrip, 100), 'µs')
const bandwidth = (what, queue, factor = 1) => {
  const { medianUs } = timeOnDevice(context, stream, 10, queue)
  add(what, (factor * (256 << 20)) / medianUs / 1e3, 'GB/s')
}
bandwidth('pinned memory up', () => stream.upload(device, hostAddress, 256 << 20))
bandwidth('pinned memory down', () => stream.download(hostAddress, device, 256 << 20))
/**
 * As weights go up, by the host's clock: whole, and in pieces as experts are stored. A checkpoint is mapped, so its bytes are read out of
 * the system's file cache by whoever copies them; `readSync` copies them itself, without a map.
 */
const weights = new Uint8Array(256 << 20).fill(7)
const file = join(mkdtempSync(join(tmpdir(), 'bindings-')), 'weights')
writeFileSync(file, weights)
const { mapFileRange } = createCpuDevice({ kernels: 'reference' })
const uploads = new StreamUploads(context, stream)
const staged = new StagedUploads(
  [0, 1].map(() => new SharedArrayBuffer(16 << 20)),
  { copy() {}, mark() {}, wait() {} },
)
const rate = (what, piece, work) => {
  const all = () => {
    for (let at = 0; at < weights.length; at += piece) work(at, Math.min(piece, weights.length - at))
    stream.synchronize()
  }
  all()
  const times = Array.from({ length: 5 }, () => {
    const started = performance.now()
    all()
    return performance.now() - started
  })
  add(
    `${what}, pieces of ${(piece / 2 ** 20).toFixed(1)} MiB`,
    weights.length / medianOf(times.sort((a, b) => a - b)) / 1e6,
    'GB/s',
  )
}
const opened = openSync(file, 'r')
const target = Buffer.from(new SharedArrayBuffer(16 << 20))
for (const piece of [1.5 * 2 ** 20, 16 * 2 ** 20, 256 * 2 ** 20]) {
  const ofMemory = (at, n) => weights.subarray(at, at + n)
  const ofFile = (at, n) => mapFileRange(file, at, n)
  for (const [name, source] of [
    ['memory', ofMemory],
    ['a mapped file', ofFile],
  ]) {
    rate(`${name} up, by the driver`, piece, (at, n) => context.upload(device + at, source(at, n)))
    rate(`${name} up, as weights go`, piece, (at, n) => uploads.upload(device + at, source(at, n)))
    rate(`${name} copied by the host alone`, piece, (at, n) => staged.upload(0, source(at, n)))
  }
  rate('a file read by the host alone', piece, (at, n) => {
    for (let done = 0; done < n; ) done += readSync(opened, target, 0, Math.min(n - done, target.length), at + done)
  })
}
closeSync(opened)
rmSync(dirname(file), { recursive: true })
uploads.release()
bandwidth('copy on the device, bytes read and written', () => stream.copy(other, device, 256 << 20), 2)

const product = kernels.blas.bind({
  n: 2048,
  k: 4096,
  x: { address: device, dtype: 'bf16', stride: 4096 },
  weight: { address: device + (64 << 20), dtype: 'bf16', stride: 4096 },
  out: { address: other, dtype: 'bf16', stride: 2048 },
})
product(64)
add(
  'cuBLASLt product, host',
  hostCost(() => product(64), 100),
  'µs',
)
add(
  'cuBLASLt product of changing rows, host',
  hostCost(i => product(128 + (i & 7)), 100),
  'µs',
)

kernels[Symbol.dispose]()
const { name, sms } = context.properties
const machine = `${name}, ${sms} SMs, driver for CUDA ${context.driver.version()}, Node ${process.versions.node}`
if (options.json) console.log(JSON.stringify({ machine, results }))
else {
  console.log(machine)
  for (const { what, figure, unit } of results) console.log(`${what.padEnd(60)} ${String(figure).padStart(8)} ${unit}`)
}
