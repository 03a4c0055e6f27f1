// Thousands of calls between GPUs in one go, modes, results, sizes and skews as chance has it: nothing hangs, and no count drifts.
// SWITCHYARD_TEST_FULL: ten times as many.
import { expect, it } from 'vitest'
import { checkBack, checkCombined, checkDispatch, checkSlots, drawData } from '../../src/cli/bench/ep-cuda-data.js'
import { PeerNode } from '../../src/cli/bench/ep-cuda-node.js'
import { drawRoutes, expertsOfMember } from '../../src/cli/bench/ep-workload.js'
import type { ExpertBufferConfig } from '../../src/comm/index.js'
import { CudaDriver } from '../../src/device/cuda/driver.js'
import { requireLibraries } from '../../src/device/cuda/libraries.js'
import { CounterRandom, STREAM } from '../../src/runtime/random.js'

// A stream of its own queue for every rank: one that waits must not hold up the one it waits for.
process.env['CUDA_DEVICE_MAX_CONNECTIONS'] = '32'

const gpus = new CudaDriver(requireLibraries().driver).get('cuDeviceGetCount')
const CALLS = process.env['SWITCHYARD_TEST_FULL'] ? 100_000 : 10_000
const CHECK_EVERY = 250
/** Calls that are queued before this thread waits: far fewer launches than a stream's queue holds. */
const QUEUED = 20
const VARIANTS = 16
const [RANKS, TOKENS, HIDDEN, EXPERTS, TOP_K] = [2, 96, 256, 16, 4]

/** Tokens of each rank, from none to all there is room for, and their choices, some of which are none. */
function routes(seed: number): Int32Array[] {
  const random = new CounterRandom(seed, STREAM.benchmark)
  const shape = { tokens: TOKENS, hidden: HIDDEN, experts: EXPERTS, topK: TOP_K }
  const { ids } = drawRoutes({ ...shape, ranks: RANKS, skew: seed % 4, seed })
  return ids.map(all => {
    const tokens = seed % 5 === 0 ? random.below(2) : 1 + random.below(TOKENS)
    return all.slice(0, tokens * TOP_K).map(e => (random.below(10) === 0 ? -1 : e))
  })
}

for (const wire of ['bf16', 'fp8'] as const)
  it(`${CALLS} calls of both modes, ${wire}`, () => {
    const config: ExpertBufferConfig = {
      ...{ hidden: HIDDEN, topK: TOP_K, expertsOfMember: expertsOfMember(EXPERTS, RANKS) },
      normal: { maxTokens: TOKENS, dispatchWire: wire, combineWire: 'bf16', transit: 'direct' },
      lowLatency: { slots: TOKENS, dispatchWire: wire, combineWire: 'bf16', reduce: 'sender' },
    }
    using node = new PeerNode(
      config,
      Array.from({ length: RANKS }, (_, r) => r % gpus),
    )
    const out = node.each(r => r.lend(TOKENS * HIDDEN * 2))
    const target = (m: number) => ({ address: out[m]!, stride: HIDDEN, dtype: 'bf16' as const })
    const segments = RANKS * TOKENS * TOP_K + 128 * EXPERTS
    const to = node.each(r => r.lend(segments * HIDDEN * 2))
    const y = node.each((r, m) => {
      const random = new CounterRandom(m, STREAM.benchmark)
      const rows = r.peer.region.mostLocalExperts * RANKS * TOKENS * HIDDEN
      // Whole numbers of 7 bits: sums are exact.
      return r.put(Uint16Array.from({ length: rows }, () => 0x4280 + random.below(64)))
    })
    const variants = Array.from({ length: VARIANTS }, (_, v) => {
      const data = drawData(config, routes(v + 1))
      const ranks = node.each((r, m) => {
        const routing = {
          tokens: data.tokens[m]!,
          ids: { address: r.put(data.ids[m]!), stride: TOP_K },
          weights: { address: r.put(data.weights[m]!), stride: TOP_K },
        }
        const x = r.put(data.x[m]!)
        const asWire = { kind: 'wire', address: x, stride: HIDDEN * 2 } as const
        const rows = wire === 'fp8' ? ({ kind: 'bf16', address: x, stride: HIDDEN } as const) : asWire
        const expand = { to: { address: to[m]!, stride: HIDDEN * 2 }, rows: segments }
        const segment = { address: to[m]!, stride: HIDDEN }
        return [0, 1].map(parity => ({
          normal: [r.peer.bindNotify(parity, routing), r.peer.bindDispatch(parity, routing, rows)],
          expanded:
            wire === 'fp8'
              ? []
              : [
                  r.peer.bindNotify(parity, routing, { alignment: 128 }),
                  r.peer.bindDispatch(parity, routing, asWire, { expand }),
                  r.peer.bindReduce(parity, segment),
                  r.peer.bindCombine(parity, routing.tokens, target(m)),
                ],
          slots: [r.peer.bindSlots(parity, 3, routing, rows)],
          hooked: [r.peer.bindSlots(parity, 1, routing, rows), r.peer.bindSlots(parity, 2, routing, rows)],
          back: [r.peer.bindBack(parity, 3, 0, { address: y[m]!, stride: HIDDEN }, routing, target(m))],
          giveUp: [r.peer.bindMeet(parity, false)],
          giveSlotsUp: [r.peer.bindMeet(parity, true)],
        }))
      })
      return { data, ranks }
    })
    type Kind = keyof (typeof variants)[0]['ranks'][0][0]
    const random = new CounterRandom(7, STREAM.benchmark)
    const calls = { normal: [0, 0], lowLatency: [0, 0] }
    for (let i = 0; i < CALLS; i++) {
      const parity = random.below(2)
      const { data, ranks } = variants[random.below(VARIANTS)]!
      const checked = i % CHECK_EVERY === CHECK_EVERY - 1 || i === CALLS - 1
      const queue = (...kinds: Kind[]) =>
        node.each((_, m) => {
          for (const kind of kinds) for (const launch of ranks[m]![parity]![kind]) launch()
        })
      if (random.below(2) === 0) {
        calls.lowLatency[parity] = calls.lowLatency[parity]! + 1
        queue(random.below(3) === 0 ? 'hooked' : 'slots')
        if (checked) checkSlots(node, data, parity)
        if (random.below(8) === 0) queue('giveSlotsUp')
        else {
          queue('back')
          if (checked) checkBack(node, data, parity, y, out, 1)
        }
      } else {
        calls.normal[parity] = calls.normal[parity]! + 1
        if (wire === 'bf16' && random.below(2) === 0) {
          queue('expanded')
          if (checked) {
            checkDispatch(node, data, parity, { at: to, rows: segments })
            checkCombined(node, data, out, false, 1)
          }
        } else {
          queue('normal')
          if (checked) checkDispatch(node, data, parity)
          queue('giveUp')
        }
      }
      if (i % QUEUED === QUEUED - 1) node.settle()
    }
    node.settle()
    for (const { peer, get } of node.ranks) {
      const epochs = get(new Int32Array(4), peer.base + peer.region.stateAt)
      expect([...epochs]).toEqual([...calls.normal, ...calls.lowLatency])
    }
  }, 600_000)
