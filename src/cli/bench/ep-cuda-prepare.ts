// What the measurements of `bench ep --device cuda` begin with: ranks, their rows and routes on their GPUs, and how much of them crosses.
import type { ExpertBufferConfig } from '../../comm/index.js'
import type { DeviceRouting } from '../../comm/peer/index.js'
import { drawData, type EpData } from './ep-cuda-data.js'
import { type NodeRank, PeerNode } from './ep-cuda-node.js'
import { drawRoutes, expertsOfMember } from './ep-workload.js'

export interface EpCudaShape {
  readonly tokens: number
  readonly hidden: number
  readonly experts: number
  readonly topK: number
  readonly skew: number
  readonly seed: number
}

export interface EpCudaOptions {
  readonly gpus: readonly number[]
  readonly times: number
  readonly sms: readonly number[]
  readonly parts: readonly EpCudaPart[]
}

export const EP_CUDA_PARTS = ['controls', 'normal', 'fp8', 'expand', 'low_latency', 'layer'] as const
export type EpCudaPart = (typeof EP_CUDA_PARTS)[number]

export const nameOf = (s: EpCudaShape): string =>
  `${s.tokens}×${s.hidden}, ${s.experts} experts, top-${s.topK}${s.skew > 0 ? `, skew ${s.skew}` : ''}`

/** Rows that leave the busiest rank, or come to it. */
function crossingRows(ids: readonly Int32Array[], config: ExpertBufferConfig): number {
  const owner = config.expertsOfMember.flatMap((n, m) => Array<number>(n).fill(m))
  const { topK } = config
  const size = config.expertsOfMember.length
  const out = new Int32Array(size)
  const into = new Int32Array(size)
  ids.forEach((chosen, source) => {
    for (let t = 0; t < chosen.length / topK; t++) {
      const members = new Set([...chosen.subarray(t * topK, (t + 1) * topK)].filter(e => e >= 0).map(e => owner[e]!))
      for (const m of members)
        if (m !== source) {
          out[source] = out[source]! + 1
          into[m] = into[m]! + 1
        }
    }
  })
  return Math.max(...out, ...into)
}

/** Choices of other ranks' experts, of the busiest rank or to it: rows of a combine at the origin. */
export function crossingChoices(ids: readonly Int32Array[], config: ExpertBufferConfig): number {
  const owner = config.expertsOfMember.flatMap((n, m) => Array<number>(n).fill(m))
  const out = new Int32Array(ids.length)
  const into = new Int32Array(ids.length)
  ids.forEach((chosen, source) => {
    for (const e of chosen) {
      if (e < 0 || owner[e] === source) continue
      out[source] = out[source]! + 1
      into[owner[e]!] = into[owner[e]!]! + 1
    }
  })
  return Math.max(...out, ...into)
}

export interface Prepared {
  readonly node: PeerNode
  readonly data: EpData
  readonly routing: readonly DeviceRouting[]
  readonly x: readonly number[]
  readonly out: readonly number[]
  readonly crossing: number
}

export function prepare(shape: EpCudaShape, config: ExpertBufferConfig, o: EpCudaOptions): Prepared {
  const { ids } = drawRoutes({ ...shape, ranks: o.gpus.length })
  const data = drawData(config, ids)
  const node = new PeerNode(config, o.gpus)
  const stride = shape.topK
  const routing = node.ranks.map((r, m) => ({
    tokens: shape.tokens,
    ids: { address: r.put(ids[m]!), stride },
    weights: { address: r.put(data.weights[m]!), stride },
  }))
  const x = node.ranks.map((r, m) => r.put(data.x[m]!))
  const out = node.ranks.map(r => r.lend(shape.tokens * shape.hidden * 2))
  return { node, data, routing, x, out, crossing: crossingRows(ids, config) }
}

export const configOf = (shape: EpCudaShape, ranks: number): ExpertBufferConfig => ({
  hidden: shape.hidden,
  topK: shape.topK,
  expertsOfMember: expertsOfMember(shape.experts, ranks),
})

export const normalConfig = (shape: EpCudaShape, ranks: number, dispatchWire: 'bf16' | 'fp8'): ExpertBufferConfig => ({
  ...configOf(shape, ranks),
  results: 1,
  normal: { maxTokens: shape.tokens, dispatchWire, combineWire: 'bf16', transit: 'direct' },
})

/** Rows for the experts' segments with room for the padding to 128. */
export const expandedRows = (ids: readonly Int32Array[], config: ExpertBufferConfig): number => {
  const owner = config.expertsOfMember.flatMap((n, m) => Array<number>(n).fill(m))
  const pairs = new Int32Array(owner.length)
  for (const chosen of ids) for (const e of chosen) if (e >= 0) pairs[e] = pairs[e]! + 1
  const of = new Int32Array(config.expertsOfMember.length)
  pairs.forEach((n, e) => {
    of[owner[e]!] = of[owner[e]!]! + Math.ceil(n / 128) * 128
  })
  return Math.max(...of)
}

export function randomRows(r: NodeRank, rows: number, width: number, seed: number, scale = 1): number {
  r.device.context.makeCurrent()
  const address = r.lend(rows * width * 2)
  const { kernels } = r.device
  kernels
    .kernel('bench.cu', 'bench_fill')
    .bind(['u64', 'u64', 'u32', 'f32'], [address, rows * width, seed, scale])
    .launch([kernels.properties.sms * 8, 1, 1], 256)
  return address
}
