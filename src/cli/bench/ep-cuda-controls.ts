// Controls of `bench ep --device cuda`: what the same links carry in the same run without dispatch. Copies, stores and loads by kernels,
// a flag each way, and NCCL where it is installed.
import { Nccl, NcclError } from '../../device/cuda/nccl.js'
import { type EpCudaFigure, figure } from './ep-cuda-figure.js'
import type { PeerNode } from './ep-cuda-node.js'
import { type EpCudaOptions, normalConfig, prepare } from './ep-cuda-prepare.js'

/** The control that says whether a run may be compared with stored figures. */
export const PEER_COPY = 'control: copies, all ranks at once'

export function* controls(o: EpCudaOptions, note: (text: string) => void): Iterable<EpCudaFigure> {
  const shape = { tokens: 32, hidden: 128, experts: 8, topK: 2, skew: 0, seed: 1 }
  const { node } = prepare(shape, normalConfig(shape, o.gpus.length, 'bf16'), o)
  using held = node
  const bytes = 256 << 20
  const from = held.each(r => r.lend(bytes))
  const to = held.each(r => r.lend(bytes))
  const next = (m: number): number => (m + 1) % o.gpus.length
  const copies = held.each((r, m) => () => r.device.kernels.stream.copy(to[next(m)]!, from[m]!, bytes))
  const [us] = held.time([copies], o.times)
  yield figure(PEER_COPY, '256 MiB', 0, us!, bytes)
  if (!o.parts.includes('controls')) return
  const [local] = held.time([held.each((r, m) => () => r.device.kernels.stream.copy(to[m]!, from[m]!, bytes))], o.times)
  yield figure('control: copies inside each GPU', '256 MiB', 0, local!, 0, { memory: 2 * bytes })
  yield* ncclAllToAll(held, o, note)
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

/** NCCL, wherever it works: one that is installed and does not is told, and the other controls are measured all the same. */
function* ncclAllToAll(node: PeerNode, o: EpCudaOptions, note: (text: string) => void): Iterable<EpCudaFigure> {
  // It has one communicator a GPU.
  if (new Set(o.gpus).size < o.gpus.length) return
  try {
    using nccl = Nccl.open(o.gpus)
    if (nccl) yield* allToAllOf(nccl, node, o)
    else note('NCCL is not there: no control of its all-to-all')
  } catch (error) {
    if (!(error instanceof NcclError)) throw error
    note(`NCCL does not work, no control of its all-to-all: ${error.message}`)
  }
}

/** With the rows of a dispatch in which every token goes to every rank. */
function* allToAllOf(nccl: Nccl, node: PeerNode, o: EpCudaOptions): Iterable<EpCudaFigure> {
  for (const [tokens, hidden] of [
    [4096, 7168],
    [4096, 2048],
    [128, 7168],
  ] as const) {
    const bytes = tokens * hidden * 2
    const sent = node.each((r, m) => {
      const [from, to] = [r.lend(bytes * o.gpus.length), r.lend(bytes * o.gpus.length)]
      r.device.context.upload(from + bytes * ((m + 1) % o.gpus.length), Int32Array.of(7 + m))
      return { from, to, stream: r.device.kernels.stream.handle }
    })
    const joint = node.each((_, m) => () => m === 0 && nccl.allToAll(sent, bytes))
    const [us] = node.time([joint], o.times)
    node.ranks.forEach((r, m) => {
      const source = (m + o.gpus.length - 1) % o.gpus.length
      const [got] = r.get(new Int32Array(1), sent[m]!.to + source * bytes)
      if (got !== 7 + source) throw new Error(`wrong result: NCCL brought ${got} from rank ${source} to rank ${m}`)
    })
    yield figure('control: NCCL all-to-all, bf16 rows', `${tokens}×${hidden}`, 0, us!, (o.gpus.length - 1) * bytes)
  }
}
