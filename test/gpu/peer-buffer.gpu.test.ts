// The ExpertBuffer conformance suite between GPUs: ranks on the GPUs there are, sharing them where there are fewer, all driven by this
// thread. The callers' operands lie in pinned host memory, what buffers show on their GPUs.
import { afterAll, afterEach } from 'vitest'
import { expertBufferSuite, type MakeExpertBuffers } from '../../src/comm/expert-buffer.suite.js'
import { lendSignals, PeerExpertBuffer, PeerRank } from '../../src/comm/peer/index.js'
import { useAccess } from '../../src/comm/suite/ep-case.suite.js'
import { CudaContext } from '../../src/device/cuda/context.js'
import { CudaDriver } from '../../src/device/cuda/driver.js'
import { PinnedLender } from '../../src/device/cuda/host-memory.js'
import { StreamKernels } from '../../src/device/cuda/kernels.js'
import { requireLibraries } from '../../src/device/cuda/libraries.js'
import { HostMemoryLender, type MemorySpan, u8View } from '../../src/device/memory.js'

// A stream of its own queue for every rank: one that waits must not hold up the one it waits for.
process.env['CUDA_DEVICE_MAX_CONNECTIONS'] = '32'

const SHAPES = Number(process.env['SWITCHYARD_TEST_SHAPES'] ?? 500)
const gpus = new CudaDriver(requireLibraries().driver).get('cuDeviceGetCount')
const contexts = Array.from({ length: Math.min(gpus, 2) }, (_, gpu) => new CudaContext(gpu))
for (const [gpu, context] of contexts.entries())
  for (const other of contexts.keys())
    if (other !== gpu && !context.enablePeer(other)) throw new Error(`GPU ${gpu} does not reach GPU ${other}`)

const hostLender = new HostMemoryLender()
const isHost = (span: MemorySpan): boolean => span.buffer instanceof SharedArrayBuffer
function onDevice({ buffer, byteOffset }: MemorySpan): { context: CudaContext; address: number } {
  if (buffer instanceof SharedArrayBuffer) throw new Error('memory of the host')
  return { context: contexts.find(c => c.device === buffer.device)!, address: buffer.address + byteOffset }
}
useAccess({
  lender: new PinnedLender(64 << 20),
  toHost(span) {
    if (isHost(span)) return span
    const copy = hostLender.lend(span.byteLength, 'copy')
    const { context, address } = onDevice(span)
    context.makeCurrent()
    context.download(u8View({ ...copy, byteLength: span.byteLength }), address)
    return { ...copy, byteLength: span.byteLength }
  },
  fromHost(copy, span) {
    if (isHost(span)) return
    const { context, address } = onDevice(span)
    context.upload(address, u8View(copy))
  },
})

/** A stream for each member, for all tests: modules are loaded once. */
const streams: { context: CudaContext; kernels: StreamKernels }[] = []
const streamOf = (member: number) => {
  while (streams.length <= member) {
    const context = contexts[streams.length % contexts.length]!
    context.makeCurrent()
    streams.push({ context, kernels: new StreamKernels(context) })
  }
  return streams[member]!
}
const live: { buffer: PeerExpertBuffer; peer: PeerRank }[] = []

const make: MakeExpertBuffers = config => {
  const size = config.expertsOfMember.length
  const sharing = Math.ceil(size / contexts.length)
  const peers = Array.from({ length: size }, (_, member) => {
    const { context, kernels } = streamOf(member)
    // Blocks of all ranks of a GPU fit it together, twice over.
    const sms = Math.max(1, Math.floor(kernels.properties.sms / sharing / 2))
    return new PeerRank({ context, kernels, config, member, sms, timeoutMs: 10_000 })
  })
  for (const peer of peers) peer.connect(peers.map(p => p.base))
  const signals = lendSignals(hostLender, size)
  const ranks = peers.map((_, m) => m)
  return peers.map(peer => {
    peer.context.makeCurrent()
    const buffer = new PeerExpertBuffer({ peer, ranks, group: 'moe_ep', signals })
    live.push({ buffer, peer })
    return buffer
  })
}

afterEach(() => {
  for (const { context, kernels } of streams) {
    context.makeCurrent()
    kernels.stream.synchronize()
  }
  for (const { buffer, peer } of live.splice(0)) {
    buffer[Symbol.dispose]()
    peer[Symbol.dispose]()
  }
})
afterAll(() => {
  for (const { context, kernels } of streams) {
    context.makeCurrent()
    kernels[Symbol.dispose]()
  }
})

expertBufferSuite(`peer memory, ${contexts.length} GPUs`, make, {
  shapes: SHAPES,
  limits: {
    wires: ['f32', 'bf16', 'fp8'],
    combineWires: ['f32', 'bf16'],
    hidden: [16, 32, 48, 144, 272],
    rings: false,
  },
})
