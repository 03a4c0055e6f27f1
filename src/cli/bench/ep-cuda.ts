// `switchyard bench ep --device cuda`: dispatch and combine between GPUs over peer-mapped memory, a whole MoE layer beside its parts,
// and copies over the same links in the same run. Every result that is timed is compared first.
import type { ExpertBufferConfig } from '../../comm/index.js'
import type { DeviceRouting } from '../../comm/peer/index.js'
import { bindGroupedGemm } from '../../device/cuda/ops/grouped-gemm.js'
import type { PackedMatrix, RouterSpec } from '../../device/ops.js'
import { checkBack, checkCombined, checkDispatch, checkSlots, drawData, type EpData } from './ep-cuda-data.js'
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

export interface EpCudaFigure {
  readonly what: string
  readonly shape: string
  /** Blocks, one an SM; 0 where the kernels choose. */
  readonly sms: number
  readonly us: number
  /** Bytes that the busiest direction of the busiest rank carries, and their rate. */
  readonly linkBytes: number
  readonly linkGBs: number
  /** What the link needs for them at the rate of the stored copy, 364 GB/s; 0 where nothing crosses. */
  readonly limitUs: number
}

/** GB/s one way of stores to a peer, both ways at once, on two H200s (18 links of NVLink 4). */
export const LINK_GBS = 364

/** @param failed hears of a part that did not come to its end; the others are measured all the same */
export function* benchEpCuda(
  shapes: readonly EpCudaShape[],
  o: EpCudaOptions,
  failed: (part: string, error: unknown) => void,
): Iterable<EpCudaFigure> {
  const runs: [EpCudaPart, string, () => Iterable<EpCudaFigure>][] = [['controls', '', () => controls(o)]]
  for (const shape of shapes) {
    const name = nameOf(shape)
    runs.push(['normal', name, () => normal(shape, o, 'bf16')])
    runs.push(['fp8', name, () => normal(shape, o, 'fp8')])
    runs.push(['expand', name, () => expanded(shape, o)])
    for (const tokens of [128, 1]) runs.push(['low_latency', name, () => lowLatency({ ...shape, tokens }, o)])
    runs.push(['layer', name, () => layer(shape, o)])
  }
  for (const [part, name, run] of runs) {
    if (!o.parts.includes(part)) continue
    try {
      yield* run()
    } catch (error) {
      failed(`${part} ${name}`, error)
    }
  }
}

const figure = (what: string, shape: string, sms: number, us: number, linkBytes: number): EpCudaFigure => ({
  ...{ what, shape, sms, us, linkBytes },
  linkGBs: linkBytes / us / 1e3,
  limitUs: linkBytes / LINK_GBS / 1e3,
})

const nameOf = (s: EpCudaShape): string =>
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

interface Prepared {
  readonly node: PeerNode
  readonly data: EpData
  readonly routing: readonly DeviceRouting[]
  readonly x: readonly number[]
  readonly out: readonly number[]
  readonly crossing: number
}

function prepare(shape: EpCudaShape, config: ExpertBufferConfig, o: EpCudaOptions): Prepared {
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

const configOf = (shape: EpCudaShape, ranks: number): ExpertBufferConfig => ({
  hidden: shape.hidden,
  topK: shape.topK,
  expertsOfMember: expertsOfMember(shape.experts, ranks),
})

const normalConfig = (shape: EpCudaShape, ranks: number, dispatchWire: 'bf16' | 'fp8'): ExpertBufferConfig => ({
  ...configOf(shape, ranks),
  results: 1,
  normal: { maxTokens: shape.tokens, dispatchWire, combineWire: 'bf16', transit: 'direct' },
})

function* normal(shape: EpCudaShape, o: EpCudaOptions, wire: 'bf16' | 'fp8'): Iterable<EpCudaFigure> {
  const prepared = prepare(shape, normalConfig(shape, o.gpus.length, wire), o)
  using node = prepared.node
  const { data, routing, x, out, crossing } = prepared
  const name = nameOf(shape)
  const rowBytes = wire === 'bf16' ? shape.hidden * 2 : shape.hidden + (shape.hidden / 128) * 4
  const notify = node.each((r, m) => r.peer.bindNotify(0, routing[m]!))
  for (const sms of o.sms) {
    const rows = (m: number) =>
      wire === 'bf16'
        ? ({ kind: 'wire', address: x[m]!, stride: shape.hidden * 2 } as const)
        : ({ kind: 'bf16', address: x[m]!, stride: shape.hidden } as const)
    const send = node.each((r, m) => r.peer.bindDispatch(0, routing[m]!, rows(m), { sms }))
    const both = node.each((_, m) => () => {
      notify[m]!()
      send[m]!()
    })
    node.run((_, m) => both[m]!())
    if (sms === o.sms[0]) checkDispatch(node, data, 0)
    const combine = node.each((r, m) =>
      r.peer.bindCombine(0, shape.tokens, { address: out[m]!, stride: shape.hidden, dtype: 'bf16' }, { sms }),
    )
    const [counts, all, back] = node.time([notify, both, combine], o.times)
    if (sms === o.sms[0]) {
      checkDispatch(node, data, 0)
      yield figure('counts', name, 1, counts!, 0)
    }
    yield figure(`dispatch ${wire}, compact`, name, sms, all!, crossing * rowBytes)
    if (wire === 'bf16') yield figure('combine bf16', name, sms, back!, crossing * rowBytes)
  }
  if (wire === 'bf16') {
    const sms = o.sms.at(-1)!
    const send = node.each((r, m) =>
      r.peer.bindDispatch(0, routing[m]!, { kind: 'wire', address: x[m]!, stride: shape.hidden * 2 }, { sms }),
    )
    const us = node.timeInGraph(
      node.each((_, m) => () => {
        notify[m]!()
        send[m]!()
      }),
      10,
      Math.max(3, Math.ceil(o.times / 4)),
    )
    yield figure('dispatch bf16, compact, in a graph', name, sms, us, crossing * rowBytes)
  }
}

/** Rows for the experts' segments with room for the padding to 128. */
const expandedRows = (ids: readonly Int32Array[], config: ExpertBufferConfig): number => {
  const owner = config.expertsOfMember.flatMap((n, m) => Array<number>(n).fill(m))
  const pairs = new Int32Array(owner.length)
  for (const chosen of ids) for (const e of chosen) if (e >= 0) pairs[e] = pairs[e]! + 1
  const of = new Int32Array(config.expertsOfMember.length)
  pairs.forEach((n, e) => {
    of[owner[e]!] = of[owner[e]!]! + Math.ceil(n / 128) * 128
  })
  return Math.max(...of)
}

function* expanded(shape: EpCudaShape, o: EpCudaOptions): Iterable<EpCudaFigure> {
  const config = normalConfig(shape, o.gpus.length, 'bf16')
  const prepared = prepare(shape, config, o)
  using node = prepared.node
  const { data, routing, x, out, crossing } = prepared
  const name = nameOf(shape)
  const bytes = crossing * shape.hidden * 2
  const rows = expandedRows(data.ids, config)
  const to = node.each(r => r.lend(rows * shape.hidden * 2))
  const most = node.ranks[0]!.peer.sms
  const notify = node.each((r, m) => r.peer.bindNotify(0, routing[m]!, { alignment: 128 }))
  let checked = false
  for (const senders of [8, 16, 24, 32, 48, 64].filter(n => n < most)) {
    const send = node.each((r, m) =>
      r.peer.bindDispatch(
        0,
        routing[m]!,
        { kind: 'wire', address: x[m]!, stride: shape.hidden * 2 },
        { expand: { to: { address: to[m]!, stride: shape.hidden * 2 }, rows, senders } },
      ),
    )
    const both = node.each((_, m) => () => {
      notify[m]!()
      send[m]!()
    })
    if (!checked) {
      node.run((_, m) => both[m]!())
      checkDispatch(node, data, 0, { at: to, rows })
      checked = true
    }
    const [us] = node.time([both], o.times)
    yield figure(`dispatch bf16, by expert, ${senders} senders`, name, most, us!, bytes)
  }
  // Experts that give their rows back as they are: the weighted sums can then be checked.
  const y = node.each((_, m) => ({ address: to[m]!, stride: shape.hidden }))
  const target = (m: number) => ({ address: out[m]!, stride: shape.hidden, dtype: 'bf16' as const })
  const reduce = node.each((r, m) => r.peer.bindReduce(0, y[m]!))
  const combine = node.each((r, m) => r.peer.bindCombine(0, shape.tokens, target(m)))
  node.run((_, m) => {
    reduce[m]!()
    combine[m]!()
  })
  checkCombined(node, data, out, false)
  const remote = node.each((r, m) => r.peer.bindReduce(0, y[m]!, { skipOwn: true }))
  const local = node.each((r, m) => r.peer.bindCombine(0, shape.tokens, target(m), { own: y[m]! }))
  const [reduceUs, combineUs, remoteUs, localUs] = node.time([reduce, combine, remote, local], o.times)
  checkCombined(node, data, out, true)
  yield figure('weighted sums of all rows', name, most, reduceUs!, 0)
  yield figure('combine of them', name, most, combineUs!, bytes)
  yield figure("weighted sums of peers' rows", name, most, remoteUs!, 0)
  yield figure('combine with own sums', name, most, localUs!, bytes)
}

function* lowLatency(shape: EpCudaShape, o: EpCudaOptions): Iterable<EpCudaFigure> {
  const ranks = o.gpus.length
  for (const wire of ['fp8', 'bf16'] as const) {
    for (const reduce of ['sender', 'origin'] as const) {
      if (wire === 'bf16' && reduce === 'origin') continue
      const config: ExpertBufferConfig = {
        ...configOf(shape, ranks),
        lowLatency: { slots: Math.max(shape.tokens, 128), dispatchWire: wire, combineWire: 'bf16', reduce },
      }
      const prepared = prepare(shape, config, o)
      using node = prepared.node
      const { data, routing, x, out, crossing } = prepared
      const name = nameOf(shape)
      const { region, size } = node.ranks[0]!.peer
      const yRows = region.mostLocalExperts * size * region.slots
      const y = node.each((r, m) => randomRows(r, yRows, shape.hidden, m + 1))
      const kind = reduce === 'sender' ? 0 : 2
      const parities = [0, 1]
      // Launches that begin while the kernel before them ends would take the places of others that share the GPU.
      const programmatic = new Set(o.gpus).size === o.gpus.length
      const there = parities.map(parity =>
        node.each((r, m) =>
          r.peer.bindSlots(
            parity,
            3,
            routing[m]!,
            wire === 'fp8'
              ? { kind: 'bf16', address: x[m]!, stride: shape.hidden }
              : { kind: 'wire', address: x[m]!, stride: shape.hidden * 2 },
            { programmatic },
          ),
        ),
      )
      const back = parities.map(parity =>
        node.each((r, m) =>
          r.peer.bindBack(
            parity,
            3,
            kind,
            { address: y[m]!, stride: shape.hidden },
            routing[m]!,
            { address: out[m]!, stride: shape.hidden, dtype: 'bf16' },
            { programmatic },
          ),
        ),
      )
      for (const parity of parities) {
        node.run((_, m) => {
          there[parity]![m]!()
          back[parity]![m]!()
        })
        checkSlots(node, data, parity)
        if (reduce === 'sender') checkBack(node, data, parity, y, out)
      }
      const [thereUs, backUs] = node.time([there[0]!, back[0]!], Math.max(o.times, 20))
      const rowBytes = wire === 'fp8' ? shape.hidden + (shape.hidden / 128) * 4 : shape.hidden * 2
      const pair = node.timeInGraph(
        node.each((_, m) => i => {
          there[i & 1]![m]!()
          back[i & 1]![m]!()
        }),
        20,
        o.times,
      )
      if (reduce === 'sender') checkBack(node, data, 1, y, out)
      if (reduce === 'sender') yield figure(`low-latency dispatch ${wire}`, name, 0, thereUs!, crossing * rowBytes)
      const backBytes = reduce === 'sender' ? crossing * shape.hidden * 2 : 0
      yield figure(`low-latency combine, ${reduce}`, name, 0, backUs!, backBytes)
      yield figure(`low-latency pair ${wire}, ${reduce}, in a graph`, name, 0, pair, crossing * rowBytes + backBytes)
    }
  }
}

function randomRows(r: NodeRank, rows: number, width: number, seed: number, scale = 1): number {
  r.device.context.makeCurrent()
  const address = r.lend(rows * width * 2)
  const { kernels } = r.device
  kernels
    .kernel('bench.cu', 'bench_fill')
    .bind(['u64', 'u64', 'u32', 'f32'], [address, rows * width, seed, scale])
    .launch([kernels.properties.sms * 8, 1, 1], 256)
  return address
}

/** Intermediate width of an expert: DeepSeek-V3's for hidden 7168, Qwen3-30B-A3B's for 2048. */
const interOf = (hidden: number): number =>
  hidden === 7168 ? 2048 : hidden === 2048 ? 768 : Math.max(128, hidden >> 2)

/** router → dispatch by expert → gate-up → down → weighted sums → combine. */
function* layer(shape: EpCudaShape, o: EpCudaOptions): Iterable<EpCudaFigure> {
  const config = normalConfig(shape, o.gpus.length, 'bf16')
  const prepared = prepare(shape, config, o)
  using node = prepared.node
  const { data, x, out, crossing } = prepared
  const name = nameOf(shape)
  const { hidden, experts, topK, tokens } = shape
  const inter = interOf(hidden)
  const most = node.ranks[0]!.peer.sms
  // Room for what a router of random logits may draw beyond the mean.
  const rows = Math.ceil((expandedRows(data.ids, config) * 1.1) / 128) * 128 + 1024
  const parts = node.each((r, m) => {
    const locals = config.expertsOfMember[m]!
    const { kernels, ops } = r.device
    const matrix = (n: number, k: number): PackedMatrix => ({
      ...{ kind: 'bf16', n, k, count: locals, strideBytes: n * k * 2 },
      span: {
        buffer: { device: r.device.context.device, address: randomRows(r, locals * n, k, 11, 2 / Math.sqrt(k)) },
        byteOffset: 0,
        byteLength: locals * n * k * 2,
      },
    })
    const operand = (bytes: number, stride: number, dtype: 'f32' | 'bf16' = 'f32') => ({
      span: { buffer: { device: r.device.context.device, address: r.lend(bytes) }, byteOffset: 0, byteLength: bytes },
      offset: 0,
      stride,
      dtype,
    })
    const logits = operand(tokens * experts * 4, experts)
    r.device.context.upload(
      kernels.addressOf(logits.span),
      Float32Array.from(
        { length: tokens * experts },
        (_, i) => (Math.imul(i + m * 77 + 1, 0x9e3779b1) >>> 8) / 2 ** 22,
      ),
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
    const maxTiles = rows / 128
    const mine: DeviceRouting = {
      tokens,
      ids: { address: kernels.addressOf(ids.span), stride: topK },
      weights: { address: kernels.addressOf(weights.span), stride: topK },
    }
    const notify = r.peer.bindNotify(0, mine, { alignment: 128, tiles, tileCount })
    const send = r.peer.bindDispatch(
      0,
      mine,
      { kind: 'wire', address: x[m]!, stride: hidden * 2 },
      { expand: { to: { address: to, stride: hidden * 2 }, rows } },
    )
    const first = bindGroupedGemm(kernels, {
      ...{ x: { address: to, stride: hidden, rows }, weight: matrix(2 * inter, hidden), gated: true },
      ...{ out: { address: inner, stride: inter }, tiles, tileCount, maxTiles },
    })
    const second = bindGroupedGemm(kernels, {
      ...{ x: { address: inner, stride: inter, rows }, weight: matrix(hidden, inter), gated: false },
      ...{ out: { address: y, stride: hidden }, tiles, tileCount, maxTiles },
    })
    const experts1 = { address: y, stride: hidden }
    const reduce = r.peer.bindReduce(0, experts1, { skipOwn: true })
    const combine = r.peer.bindCombine(
      0,
      tokens,
      { address: out[m]!, stride: hidden, dtype: 'bf16' },
      { own: experts1 },
    )
    const steps = [
      () => router(tokens),
      () => {
        notify()
        send()
      },
      () => first(),
      () => second(),
      reduce,
      combine,
    ]
    return { steps, permute: r.peer.bindCopy(y, to, rows * hidden * 2, most) }
  })
  const whole = parts.map(({ steps }) => () => {
    for (const step of steps) step()
  })
  node.run((_, m) => whole[m]!())
  const names = ['router', 'dispatch by expert', 'gate-up', 'down', "sums of peers' rows", 'combine']
  const times = node.time(
    names.map((_, i) => parts.map(p => p.steps[i]!)),
    o.times,
  )
  const [wholeUs] = node.time([whole], o.times)
  const [copyUs] = node.time([parts.map(p => p.permute)], o.times)
  const link = crossing * hidden * 2
  const totals = [0, link, 0, 0, 0, link]
  for (const [i, part] of names.entries()) yield figure(`layer: ${part}`, name, most, times[i]!, totals[i]!)
  yield figure('layer: whole', name, most, wholeUs!, 2 * link)
  yield figure('a copy of all expert rows (a permutation at its best)', name, most, copyUs!, 0)
}

function* controls(o: EpCudaOptions): Iterable<EpCudaFigure> {
  const shape = { tokens: 32, hidden: 128, experts: 8, topK: 2, skew: 0, seed: 1 }
  const { node } = prepare(shape, normalConfig(shape, o.gpus.length, 'bf16'), o)
  using held = node
  const bytes = 256 << 20
  const from = held.each(r => r.lend(bytes))
  const to = held.each(r => r.lend(bytes))
  const next = (m: number): number => (m + 1) % o.gpus.length
  const copies = held.each((r, m) => () => r.device.kernels.stream.copy(to[next(m)]!, from[m]!, bytes))
  const [us] = held.time([copies], o.times)
  yield figure('control: copies, all ranks at once', '256 MiB', 0, us!, bytes)
  const [local] = held.time([held.each((r, m) => () => r.device.kernels.stream.copy(to[m]!, from[m]!, bytes))], o.times)
  yield figure('control: copies inside each GPU', '256 MiB', 0, local!, 0)
  for (const sms of [8, 16, 24, 32, 64, 132].filter(n => n <= held.ranks[0]!.peer.sms)) {
    const push = held.each((r, m) => r.peer.bindCopy(to[next(m)]!, from[m]!, bytes, sms))
    const pull = held.each((r, m) => r.peer.bindCopy(to[m]!, from[next(m)]!, bytes, sms))
    const [pushUs, pullUs] = held.time([push, pull], o.times)
    yield figure('control: stores to peers, both ways', '256 MiB', sms, pushUs!, bytes)
    yield figure('control: loads from peers, both ways', '256 MiB', sms, pullUs!, bytes)
  }
  const rounds = 200
  const [meet] = held.time([held.each(r => r.peer.bindBarrier(rounds))], o.times)
  yield figure('control: a flag each way', `${rounds} rounds in a kernel`, 1, meet! / rounds, 0)
}
