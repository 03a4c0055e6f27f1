// A whole MoE layer of `bench ep --device cuda`: router → dispatch by expert → gate-up → down → weighted sums → combine, beside its
// parts, their limits, and the same layer of DeepEP V2 and DeepGEMM by stored figures. A token is computed again from the weights.
import { INFO } from '../../comm/peer/index.js'
import { bindGroupedGemm, type GroupedGemmSpec, mostTileRows } from '../../device/cuda/ops/grouped-gemm.js'
import type { PackedMatrix, RouterSpec } from '../../device/ops.js'
import { fromBits } from './ep-cuda-data.js'
import { type EpCudaFigure, figure } from './ep-cuda-figure.js'
import type { NodeRank } from './ep-cuda-node.js'
import {
  type EpCudaOptions,
  type EpCudaShape,
  expandedRows,
  nameOf,
  type Prepared,
  randomRows,
} from './ep-cuda-prepare.js'
import { storedDeepEp, storedGemmUs } from './ep-stored.js'

/** Intermediate width of an expert: DeepSeek-V3's for hidden 7168, Qwen3-30B-A3B's for 2048. */
const interOf = (hidden: number): number =>
  hidden === 7168 ? 2048 : hidden === 2048 ? 768 : Math.max(128, hidden >> 2)

/** How many row tiles a strip of the grouped product's walk holds: the fastest is taken. */
const VARIANTS = [
  { variant: 'sm90', strip: 1 },
  { variant: 'sm90', strip: 2 },
  { variant: 'sm90', strip: 4 },
  { variant: 'sm90', strip: 8 },
] as const

interface LayerRank {
  readonly router: () => void
  readonly dispatch: () => void
  readonly first: readonly (() => void)[]
  readonly second: readonly (() => void)[]
  readonly reduce: () => void
  readonly combine: () => void
  readonly permute: () => void
  readonly ids: number
  readonly weights: number
  readonly gateUp: number
  readonly down: number
}

export function* layer(shape: EpCudaShape, o: EpCudaOptions, prepared: Prepared): Iterable<EpCudaFigure> {
  using node = prepared.node
  const name = nameOf(shape)
  const { hidden, experts, topK, tokens } = shape
  const inter = interOf(hidden)
  const { sms, config } = node.ranks[0]!.peer
  // Room for what a router of random logits may draw beyond the mean.
  const rows = Math.ceil((expandedRows(prepared.data.ids, config) * 1.1) / 128) * 128 + 1024
  const ranks = node.each((r, m) => bindLayer(r, m, shape, prepared, rows))
  const parts = {
    router: ranks.map(p => p.router),
    dispatch: ranks.map(p => p.dispatch),
    reduce: ranks.map(p => p.reduce),
    combine: ranks.map(p => p.combine),
  }
  node.run((_, m) => {
    const rank = ranks[m]!
    for (const step of [rank.router, rank.dispatch, rank.first[0]!, rank.second[0]!, rank.reduce, rank.combine]) step()
  })
  checkLayer(shape, prepared, ranks)

  const gemms = VARIANTS.flatMap((_, v) => [ranks.map(p => p.first[v]!), ranks.map(p => p.second[v]!)])
  const times = node.time(gemms, o.times)
  const fastest = (which: number): number =>
    VARIANTS.reduce((best, _, v) => (times[2 * v + which]! < times[2 * best + which]! ? v : best), 0)
  const [v1, v2] = [fastest(0), fastest(1)]
  const [routerUs, dispatchUs, reduceUs, combineUs] = node.time(Object.values(parts), o.times)
  const [wholeUs, copyUs] = node.time(
    [
      ranks.map(p => () => {
        for (const step of [p.router, p.dispatch, p.first[v1]!, p.second[v2]!, p.reduce, p.combine]) step()
      }),
      ranks.map(p => p.permute),
    ],
    o.times,
  )
  checkLayer(shape, prepared, ranks)

  const { pairs, padded, crossing, remotePairs } = counts(prepared, ranks.length)
  const [link, width] = [crossing * hidden * 2, hidden * 2]
  const locals = experts / ranks.length
  const gemm = (what: string, us: number, n: number, k: number, outWidth: number): EpCudaFigure =>
    figure(`layer: ${what}`, `${pairs} rows (${padded} in tiles) × ${n} × ${k}, ${locals} experts`, sms, us, 0, {
      flops: 2 * pairs * n * k,
      memory: (locals * n * k + pairs * (k + outWidth)) * 2,
    })
  const gateUp = (v: number) => gemm(`gate-up, ${told(v)}`, times[2 * v]!, 2 * inter, hidden, inter)
  const down = (v: number) => gemm(`down, ${told(v)}`, times[2 * v + 1]!, hidden, inter, hidden)
  const found: EpCudaFigure[] = [
    figure('layer: router', name, sms, routerUs!, 0, { memory: tokens * (experts + 2 * topK) * 4 }),
    figure('layer: dispatch by expert', name, sms, dispatchUs!, link, { memory: (tokens + pairs + crossing) * width }),
    gateUp(v1),
    down(v2),
    figure("layer: sums of peers' rows", name, sms, reduceUs!, 0, { memory: (remotePairs + crossing) * width }),
    figure('layer: combine', name, sms, combineUs!, link, {
      memory: (pairs - remotePairs + crossing + tokens) * width,
    }),
  ]
  yield* found
  for (const [v] of VARIANTS.entries()) {
    if (v !== v1) yield { ...gateUp(v), what: `not taken: ${gateUp(v).what}` }
    if (v !== v2) yield { ...down(v), what: `not taken: ${down(v).what}` }
  }
  yield figure('a copy of all expert rows (a permutation at its best)', name, sms, copyUs!, 0, {
    memory: 2 * rows * width,
  })
  const them = storedDeepEp('normal', shape)
  const products = [storedGemmUs(locals, padded, 2 * inter, hidden), storedGemmUs(locals, padded, hidden, inter)]
  const stored =
    them && products[0] !== undefined && products[1] !== undefined
      ? {
          us: routerUs! + them.dispatchBf16 + (copyUs! * pairs) / rows + products[0] + products[1] + them.combine,
          what: 'this router, DeepEP V2 dispatch, this copy, DeepGEMM at its nearest shape, DeepEP V2 combine',
        }
      : undefined
  yield {
    ...figure('layer: whole', name, sms, wholeUs!, 0, { stored }),
    limitUs: found.reduce((sum, f) => sum + f.limitUs, 0),
    limit: 'sum of parts',
  }
}

const told = (v: number): string => `strips of ${VARIANTS[v]!.strip}`

/** Rows of the busiest rank: of experts, with what pads their segments to 128, from other ranks, and of experts for other ranks. */
interface Counts {
  readonly pairs: number
  readonly padded: number
  readonly crossing: number
  readonly remotePairs: number
}

function counts({ node }: Prepared, size: number): Counts {
  const each = node.ranks.map(({ peer }, m) => {
    const locals = peer.config.expertsOfMember[m]!
    const info = peer.read('info', 0, INFO.experts + locals)
    const received = info[INFO.received]!
    const starts = [...info.subarray(INFO.sourceStart, INFO.sourceStart + size), received]
    const own = starts[m + 1]! - starts[m]!
    const pairs = info.subarray(INFO.experts).reduce((a, b) => a + b, 0)
    return {
      pairs,
      padded: info.subarray(INFO.experts).reduce((sum, n) => sum + Math.ceil(n / 128) * 128, 0),
      crossing: received - own,
      remotePairs: Math.round((pairs * (received - own)) / Math.max(1, received)),
    }
  })
  return each.reduce((most, r) => (r.pairs > most.pairs ? r : most))
}

function bindLayer(r: NodeRank, m: number, shape: EpCudaShape, { x, out }: Prepared, rows: number): LayerRank {
  const { hidden, experts, topK, tokens } = shape
  const inter = interOf(hidden)
  const { kernels, ops, context } = r.device
  const { config, sms } = r.peer
  const locals = config.expertsOfMember[m]!
  const matrix = (n: number, k: number): PackedMatrix => ({
    ...{ kind: 'bf16', n, k, count: locals, strideBytes: n * k * 2 },
    span: {
      buffer: { device: context.device, address: randomRows(r, locals * n, k, 11 + m, 2 / Math.sqrt(k)) },
      byteOffset: 0,
      byteLength: locals * n * k * 2,
    },
  })
  const operand = (bytes: number, stride: number, dtype: 'f32' | 'bf16' = 'f32') => ({
    span: { buffer: { device: context.device, address: r.lend(bytes) }, byteOffset: 0, byteLength: bytes },
    offset: 0,
    stride,
    dtype,
  })
  const logits = operand(tokens * experts * 4, experts)
  context.upload(
    kernels.addressOf(logits.span),
    Float32Array.from({ length: tokens * experts }, (_, i) => (Math.imul(i + m * 77 + 1, 0x9e3779b1) >>> 8) / 2 ** 22),
  )
  const ids = operand(tokens * topK * 4, topK)
  const weights = operand(tokens * topK * 4, topK)
  const spec: RouterSpec = {
    ...{ experts, topK, groups: 1, topGroups: 1, groupScore: 'max', scoring: 'softmax', normalize: true, scale: 1 },
  }
  const router = ops.router({ ids, weights, logits, spec })
  const to = r.lend(rows * hidden * 2)
  const inner = r.lend(rows * inter * 2)
  const y = r.lend(rows * hidden * 2)
  const tiles = r.lend((rows / 128 + locals) * 16)
  const tileCount = r.lend(16)
  const addresses = { ids: kernels.addressOf(ids.span), weights: kernels.addressOf(weights.span) }
  const mine = {
    tokens,
    ids: { address: addresses.ids, stride: topK },
    weights: { address: addresses.weights, stride: topK },
  }
  const notify = r.peer.bindNotify(0, mine, { alignment: 128, tiles, tileCount, tileRows: mostTileRows('sm90') })
  const expand = { to: { address: to, stride: hidden * 2 }, rows }
  const send = r.peer.bindDispatch(0, mine, { kind: 'wire', address: x[m]!, stride: hidden * 2 }, { expand })
  const gateUp = matrix(2 * inter, hidden)
  const down = matrix(hidden, inter)
  const products = (spec: Omit<GroupedGemmSpec, 'tiles' | 'tileCount' | 'maxTiles'>): (() => void)[] =>
    VARIANTS.map(variant => {
      const launch = bindGroupedGemm(kernels, { ...spec, ...variant, tiles, tileCount, maxTiles: rows / 128 })
      return () => launch()
    })
  const expertRows = { address: y, stride: hidden }
  return {
    router: () => router(tokens),
    dispatch() {
      notify()
      send()
    },
    first: products({
      ...{ x: { address: to, stride: hidden, rows }, weight: gateUp, gated: true },
      out: { address: inner, stride: inter },
    }),
    second: products({
      ...{ x: { address: inner, stride: inter, rows }, weight: down, gated: false },
      out: { address: y, stride: hidden },
    }),
    reduce: r.peer.bindReduce(0, expertRows, { skipOwn: true }),
    combine: r.peer.bindCombine(0, tokens, { address: out[m]!, stride: hidden, dtype: 'bf16' }, { own: expertRows }),
    permute: r.peer.bindCopy(y, to, rows * hidden * 2, sms),
    ...addresses,
    gateUp: kernels.addressOf(gateUp.span),
    down: kernels.addressOf(down.span),
  }
}

/** A token of each rank computed from the weights themselves, at some columns; bf16 on the way bounds what may differ. */
function checkLayer(shape: EpCudaShape, { node, data, out }: Prepared, ranks: readonly LayerRank[]): void {
  node.settle()
  const { hidden, topK, tokens } = shape
  const inter = interOf(hidden)
  const owner = node.ranks[0]!.peer.config.expertsOfMember.flatMap((n, m) =>
    Array.from({ length: n }, (_, e) => [m, e]),
  )
  const number = Float32Array.from({ length: 65536 }, (_, bits) => fromBits(bits))
  const columns = Array.from({ length: 8 }, (_, i) => Math.floor(((i + 0.5) * hidden) / 8))
  node.ranks.forEach((rank, r) => {
    const token = (r * 1237 + 5) % tokens
    const ids = rank.get(new Int32Array(topK), ranks[r]!.ids + token * topK * 4)
    const weights = rank.get(new Float32Array(topK), ranks[r]!.weights + token * topK * 4)
    const x = Float32Array.from(data.x[r]!.subarray(token * hidden, (token + 1) * hidden), bits => number[bits]!)
    const sum = new Float64Array(columns.length)
    const size = new Float64Array(columns.length)
    for (const [k, id] of ids.entries()) {
      const [m, e] = owner[id]! as [number, number]
      const their = node.ranks[m]!
      const w = their.get(new Uint16Array(2 * inter * hidden), ranks[m]!.gateUp + e * 2 * inter * hidden * 2)
      const dot = (row: number): number => {
        let total = 0
        for (let c = 0, at = row * hidden; c < hidden; c++, at++) total += x[c]! * number[w[at]!]!
        return total
      }
      const h = Float64Array.from({ length: inter }, (_, i) => {
        const gate = dot(i)
        return (gate / (1 + Math.exp(-gate))) * dot(inter + i)
      })
      for (const [j, column] of columns.entries()) {
        const row = their.get(new Uint16Array(inter), ranks[m]!.down + (e * hidden + column) * inter * 2)
        for (let i = 0; i < inter; i++) {
          const term = weights[k]! * h[i]! * number[row[i]!]!
          sum[j] = sum[j]! + term
          size[j] = size[j]! + Math.abs(term)
        }
      }
    }
    const found = rank.get(new Uint16Array(hidden), out[r]! + token * hidden * 2)
    for (const [j, column] of columns.entries()) {
      const value = number[found[column]!]!
      // Inner values, expert rows, sums of members and the result are rounded to bf16: 2^-9 of each, and of the terms for the first.
      if (!(Math.abs(value - sum[j]!) <= size[j]! * 2 ** -8 + Math.abs(sum[j]!) * 2 ** -7))
        throw new Error(`wrong result: layer on rank ${r}, token ${token}, column ${column} is ${value}, not ${sum[j]}`)
    }
  })
}
