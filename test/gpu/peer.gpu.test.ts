// Expert parallelism over peer-mapped memory: ranks on the GPUs there are, sharing them where there are fewer, every byte compared.
import { expect, it } from 'vitest'
import { checkBack, checkCombined, checkDispatch, checkSlots, drawData } from '../../src/cli/bench/ep-cuda-data.js'
import { describeFault, PeerNode } from '../../src/cli/bench/ep-cuda-node.js'
import { drawRoutes, expertsOfMember } from '../../src/cli/bench/ep-workload.js'
import type { ExpertBufferConfig } from '../../src/comm/index.js'
import { CudaDriver } from '../../src/device/cuda/driver.js'
import { requireLibraries } from '../../src/device/cuda/libraries.js'
import { CounterRandom, STREAM } from '../../src/runtime/random.js'

// A stream of its own queue for every rank: one that waits must not hold up the one it waits for.
process.env['CUDA_DEVICE_MAX_CONNECTIONS'] = '32'

const gpus = new CudaDriver(requireLibraries().driver).get('cuDeviceGetCount')
const placed = (ranks: number): number[] => Array.from({ length: ranks }, (_, r) => r % Math.min(gpus, ranks))

interface Shape {
  readonly tokens: number
  readonly hidden: number
  readonly experts: number
  readonly topK: number
}

function open(shape: Shape, ranks: number, wire: 'bf16' | 'fp8', seed: number, on = placed(ranks)) {
  const { tokens, hidden, experts, topK } = shape
  const { ids } = drawRoutes({ ...shape, ranks, skew: seed % 3 === 0 ? 1 : 0, seed })
  const random = new CounterRandom(seed, STREAM.benchmark)
  // Some choices are none, and some ranks have nothing.
  for (const [r, chosen] of ids.entries())
    for (let i = 0; i < chosen.length; i++) if (random.below(8) === 0 || (seed % 5 === 0 && r === 0)) chosen[i] = -1
  const config: ExpertBufferConfig = {
    ...{ hidden, topK, expertsOfMember: expertsOfMember(experts, ranks) },
    normal: { maxTokens: tokens, dispatchWire: wire, combineWire: 'bf16', transit: 'direct' },
    lowLatency: { slots: Math.min(tokens, 128), dispatchWire: wire, combineWire: 'bf16', reduce: 'sender' },
  }
  const data = drawData(config, ids)
  const node = new PeerNode(config, on)
  const routing = node.ranks.map((r, m) => ({
    tokens,
    ids: { address: r.put(ids[m]!), stride: topK },
    weights: { address: r.put(data.weights[m]!), stride: topK },
  }))
  const x = node.ranks.map((r, m) => r.put(data.x[m]!))
  const out = node.ranks.map(r => r.lend(tokens * hidden * 2))
  return { node, data, routing, x, out, config, shape }
}

type Open = ReturnType<typeof open>

const rowsOf = (o: Open, m: number) =>
  o.config.normal!.dispatchWire === 'fp8'
    ? ({ kind: 'bf16', address: o.x[m]!, stride: o.shape.hidden } as const)
    : ({ kind: 'wire', address: o.x[m]!, stride: o.shape.hidden * 2 } as const)

/** Queues all of it on all ranks before anything is waited for. */
function normal(o: Open, parity: number, sms: number): void {
  const { node, data, routing } = o
  node.run((r, m) => {
    r.peer.bindNotify(parity, routing[m]!)()
    r.peer.bindDispatch(parity, routing[m]!, rowsOf(o, m), { sms: Math.min(sms, r.peer.sms) })()
  })
  checkDispatch(node, data, parity)
  // Given up by all, so that the other parity and later calls begin afresh.
  node.run(r => r.peer.bindMeet(parity, false)())
}

function expanded(o: Open, parity: number): void {
  const { node, data, routing, x, out, shape } = o
  const { hidden, tokens } = shape
  const rows = node.ranks.length * tokens * shape.topK + 128 * shape.experts
  const to = node.each(r => r.lend(rows * hidden * 2))
  for (const own of [false, true]) {
    node.run((r, m) => {
      r.peer.bindNotify(parity, routing[m]!, { alignment: 128 })()
      const expand = { to: { address: to[m]!, stride: hidden * 2 }, rows }
      r.peer.bindDispatch(parity, routing[m]!, { kind: 'wire', address: x[m]!, stride: hidden * 2 }, { expand })()
    })
    checkDispatch(node, data, parity, { at: to, rows })
    node.run((r, m) => {
      const y = { address: to[m]!, stride: hidden }
      r.peer.bindReduce(parity, y, { skipOwn: own })()
      const target = { address: out[m]!, stride: hidden, dtype: 'bf16' as const }
      r.peer.bindCombine(parity, tokens, target, own ? { own: y } : {})()
    })
    checkCombined(node, data, out, own, 1)
  }
}

function lowLatency(o: Open, parity: number, hook: boolean, repeat = 1): void {
  const { node, data, routing, out, shape } = o
  const { region, size } = node.ranks[0]!.peer
  const y = node.each((r, m) => {
    const rows = new Uint16Array(region.mostLocalExperts * size * region.slots * shape.hidden)
    const random = new CounterRandom(m, STREAM.benchmark)
    // Whole numbers of 7 bits: sums are exact.
    for (let i = 0; i < rows.length; i++) rows[i] = 0x4280 + (random.below(64) << 0)
    return r.put(rows)
  })
  for (let i = 0; i < repeat; i++) {
    const phases = hook ? [1, 2] : [3]
    for (const phase of phases) node.each((r, m) => r.peer.bindSlots(parity, phase, routing[m]!, rowsOf(o, m))())
    node.settle()
    checkSlots(node, data, parity)
    const target = (m: number) => ({ address: out[m]!, stride: shape.hidden, dtype: 'bf16' as const })
    for (const phase of phases)
      node.each((r, m) =>
        r.peer.bindBack(parity, phase, 0, { address: y[m]!, stride: shape.hidden }, routing[m]!, target(m))(),
      )
    checkBack(node, data, parity, y, out, 1)
  }
}

const SMALL: Shape[] = [
  { tokens: 33, hidden: 64, experts: 16, topK: 4 },
  { tokens: 7, hidden: 384, experts: 9, topK: 8 },
  { tokens: 100, hidden: 1040, experts: 24, topK: 6 },
]

it(`has ${gpus} GPUs to share`, () => {
  if (gpus < 2) console.warn('only one GPU: ranks share it, nothing crosses a link')
  expect(gpus).toBeGreaterThan(0)
})

for (const ranks of [1, 2, 4, 8])
  for (const [i, shape] of SMALL.entries())
    for (const wire of ['bf16', 'fp8'] as const)
      it(`${ranks} ranks, ${shape.tokens}×${shape.hidden}, ${wire}`, () => {
        const o = open(shape, ranks, wire, 10 * ranks + i)
        using _node = o.node
        for (const parity of [0, 1, 0]) normal(o, parity, 4)
        if (wire === 'bf16') for (const parity of [1, 0]) expanded(o, parity)
        for (const parity of [0, 1, 0]) lowLatency(o, parity, parity === 1)
      })

it('runs low latency from graphs, many times, over both parities', () => {
  const o = open({ tokens: 64, hidden: 1024, experts: 16, topK: 4 }, 2, 'fp8', 3)
  using node = o.node
  const { routing, out, shape, data } = o
  const y = node.each(r => r.lend(r.peer.region.mostLocalExperts * 2 * 64 * shape.hidden * 2))
  const pair = (m: number, parity: number) => {
    const { peer } = node.ranks[m]!
    const target = { address: out[m]!, stride: shape.hidden, dtype: 'bf16' as const }
    return [
      peer.bindSlots(parity, 3, routing[m]!, rowsOf(o, m)),
      peer.bindBack(parity, 3, 0, { address: y[m]!, stride: shape.hidden }, routing[m]!, target),
    ]
  }
  const pairs = node.each((_, m) => [...pair(m, 0), ...pair(m, 1)])
  const graphs = node.each((r, m) => r.device.kernels.stream.capture(() => pairs[m]!.forEach(queue => void queue())))
  for (let i = 0; i < 2500; i++) {
    node.each((_, m) => graphs[m]!.launch())
    if (i % 250 === 249) node.settle()
  }
  for (const parity of [0, 1]) checkSlots(node, data, parity)
})

it('names the member that does not come, and works again after it', () => {
  const o = open({ tokens: 8, hidden: 64, experts: 4, topK: 2 }, 2, 'bf16', 4)
  using node = o.node
  const { peer } = node.ranks[0]!
  node.ranks[0]!.device.context.makeCurrent()
  peer.bindSlots(0, 3, o.routing[0]!, rowsOf(o, 0))()
  expect(() => node.settle()).toThrow(/rank 0 waited in vain for counts of slots of rank 1/)
  expect(describeFault(0, peer.fault!)).toMatch(/rank 1/)
  peer.clearFault()
  node.each(r => r.peer.setActive([true, true], 1))
  for (const parity of [0, 1]) lowLatency(o, parity, false)
  normal(o, 0, 4)
})
