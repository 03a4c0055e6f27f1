// `switchyard bench ep --device cuda`: dispatch and combine between GPUs over peer-mapped memory, a whole MoE layer beside its parts,
// and copies over the same links in the same run. Every result that is timed is compared first.
import type { ExpertBufferConfig } from '../../comm/index.js'
import { controls } from './ep-cuda-controls.js'
import { checkBack, checkCombined, checkDispatch, checkSlots } from './ep-cuda-data.js'
import { deepEp, type EpCudaFigure, figure } from './ep-cuda-figure.js'
import { layer } from './ep-cuda-layer.js'
import type { PeerNode } from './ep-cuda-node.js'
import {
  configOf,
  crossingChoices,
  type EpCudaOptions,
  type EpCudaPart,
  type EpCudaShape,
  expandedRows,
  nameOf,
  normalConfig,
  prepare,
  randomRows,
} from './ep-cuda-prepare.js'
import { storedDeepEp } from './ep-stored.js'

/** Who is told what is no figure. */
export interface EpCudaEars {
  /** A part did not come to its end; the others are measured all the same. */
  failed(part: string, error: unknown): void
  note(text: string): void
}

export function* benchEpCuda(
  shapes: readonly EpCudaShape[],
  o: EpCudaOptions,
  { failed, note }: EpCudaEars,
): Iterable<EpCudaFigure> {
  const runs: [EpCudaPart, string, () => Iterable<EpCudaFigure>][] = [['controls', '', () => controls(o, note)]]
  for (const shape of shapes) {
    const name = nameOf(shape)
    runs.push(['normal', name, () => normal(shape, o, 'bf16')])
    runs.push(['fp8', name, () => normal(shape, o, 'fp8')])
    runs.push(['expand', name, () => expanded(shape, o)])
    for (const tokens of [128, 1]) runs.push(['low_latency', name, () => lowLatency({ ...shape, tokens }, o)])
    runs.push(['layer', name, () => layer(shape, o, prepare(shape, normalConfig(shape, o.gpus.length, 'bf16'), o))])
  }
  for (const [part, name, run] of runs) {
    // One copy over the links is measured in every run: it says whether stored figures may stand beside the others.
    if (!o.parts.includes(part) && part !== 'controls') continue
    try {
      yield* run()
    } catch (error) {
      failed(`${part} ${name}`, error)
    }
  }
}

function* normal(shape: EpCudaShape, o: EpCudaOptions, wire: 'bf16' | 'fp8'): Iterable<EpCudaFigure> {
  const prepared = prepare(shape, normalConfig(shape, o.gpus.length, wire), o)
  using node = prepared.node
  const { data, routing, x, out, crossing } = prepared
  const name = nameOf(shape)
  const rowBytes = wire === 'bf16' ? shape.hidden * 2 : shape.hidden + (shape.hidden / 128) * 4
  const stored = storedDeepEp('normal', shape)
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
    const them = wire === 'bf16' ? stored?.dispatchBf16 : stored?.dispatchFp8
    yield figure(`dispatch ${wire}, compact`, name, sms, all!, crossing * rowBytes, deepEp('V2', them))
    if (wire === 'bf16')
      yield figure('combine bf16', name, sms, back!, crossing * rowBytes, deepEp('V2', stored?.combine))
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
    const work = deepEp('V2', stored?.dispatchBf16)
    yield figure('dispatch bf16, compact, in a graph', name, sms, us, crossing * rowBytes, work)
  }
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
    const work = deepEp('V2', storedDeepEp('normal', shape)?.dispatchBf16)
    yield figure(`dispatch bf16, by expert, ${senders} senders`, name, most, us!, bytes, work)
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
      const thereInGraph = reduce === 'sender' ? dispatchesInGraph(node, there, o.times) : undefined
      const stored = storedDeepEp('lowLatency', shape)
      const dispatched = wire === 'fp8' ? stored?.lowLatencyDispatchFp8 : stored?.lowLatencyDispatchBf16
      if (reduce === 'sender')
        yield figure(
          `low-latency dispatch ${wire}`,
          name,
          0,
          thereUs!,
          crossing * rowBytes,
          deepEp('V1 or V2, the faster', dispatched),
        )
      const backBytes = (reduce === 'sender' ? crossing : crossingChoices(data.ids, config)) * shape.hidden * 2
      yield figure(
        `low-latency combine, ${reduce}`,
        name,
        0,
        backUs!,
        backBytes,
        deepEp('V1 or V2, the faster', stored?.lowLatencyCombine),
      )
      if (thereInGraph !== undefined) {
        const [fp8, both] = [
          deepEp('V1 or V2, the faster', dispatched),
          deepEp('V1 or V2, the faster', stored?.lowLatencyCombine),
        ]
        yield figure(`low-latency dispatch ${wire}, in a graph`, name, 0, thereInGraph, crossing * rowBytes, fp8)
        yield figure(
          `low-latency combine, what the pair ${wire} takes beyond it`,
          name,
          0,
          pair - thereInGraph,
          backBytes,
          both,
        )
      }
      const what = `low-latency pair ${wire}, ${reduce}, in a graph`
      const them = wire === 'fp8' ? stored?.lowLatencyPairFp8 : undefined
      yield figure(what, name, 0, pair, crossing * rowBytes + backBytes, deepEp('V1', them))
    }
  }
}

/**
 * Microseconds of a dispatch among dispatches of one graph. Slots count as read for good from here on: nothing may be combined after it.
 * None overwrites what a peer still reads: a dispatch ends only when every peer has sent its own, so peers are one result behind at most,
 * and results have slots of their own in turn.
 */
function dispatchesInGraph(node: PeerNode, there: readonly (readonly (() => void)[])[], times: number): number {
  node.settle()
  for (const parity of [0, 1])
    node.each(r => r.device.context.upload(r.peer.at('slotDone', parity), new Int32Array(r.peer.size).fill(2 ** 30)))
  return node.timeInGraph(
    node.each((_, m) => i => there[i & 1]![m]!()),
    20,
    times,
  )
}
