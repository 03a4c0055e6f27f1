// What both modes of a peer expert buffer share on one rank: announcements that are compared (in host memory, as on the CPU), staging on the
// GPU, and how operands of callers, on the host or on the GPU, become rows that kernels take.

import { HostMemoryLender, type MemorySpan } from '../../device/memory.js'
import type { Operand } from '../../device/ops.js'
import type { Clock } from '../../runtime/clock.js'
import type { Step } from '../../runtime/wait.js'
import { ExpertBufferError } from '../errors.js'
import type { ExpertBufferStatistics, Routing } from '../expert-buffer.js'
import type { ExpertBufferConfig } from '../expert-buffer-config.js'
import type { BufferCore } from '../guarded-expert-buffer.js'
import { computeLayout, type DispatchLayout, memberOfExpert } from '../layout.js'
import type { TokenRoutes } from '../shm/ep/routing.js'
import { Signals } from '../shm/ep/signals.js'
import { type Payload, sameFormat, type WireFormat, wireFormat } from '../wire/format.js'
import type { DeviceRouting, DispatchRows, PeerRank } from './peer-rank.js'
import type { Area } from './region.js'

interface Statistics extends ExpertBufferStatistics {
  peakReceived: number
  peakSlots: number
}

export interface PeerCoreOptions {
  readonly peer: PeerRank
  /** Global rank of each member. */
  readonly ranks: readonly number[]
  readonly group: string
  /** Announcements of each member, in host memory that all share: COUNTS_OFFSET bytes each. */
  readonly signals: readonly MemorySpan[]
  readonly clock?: Clock
}

export class PeerCore implements BufferCore {
  readonly peer: PeerRank
  readonly config: ExpertBufferConfig
  readonly member: number
  readonly rank: number
  readonly size: number
  readonly results: number
  readonly expertStart: Int32Array
  readonly localExperts: number
  readonly statistics: Statistics
  readonly signals: Signals
  readonly f32: WireFormat
  readonly #members: Int32Array
  readonly #lent: number[] = []

  constructor({ peer, ranks, group, signals, clock }: PeerCoreOptions) {
    const { config, member, size } = peer
    this.peer = peer
    this.config = config
    this.member = member
    this.rank = ranks[member]!
    this.size = size
    this.results = config.results ?? 2
    this.#members = memberOfExpert(config.expertsOfMember)
    this.expertStart = new Int32Array(size + 1)
    for (let m = 0; m < size; m++) this.expertStart[m + 1] = this.expertStart[m]! + config.expertsOfMember[m]!
    this.localExperts = config.expertsOfMember[member]!
    this.f32 = wireFormat('f32', config.hidden)
    this.statistics = {
      receivedPerExpert: new Float64Array(this.localExperts),
      waitedPerSource: new Float64Array(size),
      peakReceived: 0,
      peakSlots: 0,
      ringStalls: 0,
    }
    const { hidden, topK } = config
    const waited = this.statistics.waitedPerSource
    this.signals = new Signals({ spans: signals, ranks, member, group, hidden, topK, waited, clock })
  }

  layout(routing: Routing): DispatchLayout {
    const ids = this.toHost(routing.ids, routing.tokens)
    return computeLayout(this.config, this.#members, ids, routing.tokens, this.signals.active)
  }

  checkTokens({ tokens }: Routing, limit: number, mode: string): void {
    if (tokens > limit) throw new ExpertBufferError('SY_EP_TOO_MANY_TOKENS', { rank: this.rank, tokens, mode, limit })
  }

  count(perExpert: Int32Array): void {
    const total = this.statistics.receivedPerExpert
    for (let e = 0; e < perExpert.length; e++) total[e] = total[e]! + perExpert[e]!
  }

  /** Memory of this GPU for the life of the buffer. */
  lend(bytes: number): number {
    const address = this.peer.context.allocate(Math.max(bytes, 16), 'staging of expert parallelism')
    this.#lent.push(address)
    return address
  }

  dispose(): void {
    this.peer.context.makeCurrent()
    this.peer.kernels.stream.synchronize()
    for (const address of this.#lent) this.peer.context.release(address)
  }

  /** Calls of this thread now mean this rank's GPU; after every wait, since ranks may share a thread. */
  here(): PeerRank {
    this.peer.context.makeCurrent()
    return this.peer
  }

  /** Until all that was queued is done. @throws Error naming the member that was waited for in vain */
  *settled(): Step<void> {
    this.here()
    const event = this.peer.kernels.stream.record()
    yield* event.wait()
    event[Symbol.dispose]()
    this.here()
    const { fault } = this.peer
    if (fault)
      throw new ExpertBufferError('SY_EP_PEER_SILENT', {
        rank: this.rank,
        peer: this.signals.rankOf(fault.peer),
        phase: fault.phase,
        epoch: fault.epoch,
        seen: fault.seen,
        place: fault.place,
      })
  }

  /** An operand of i32 or f32 as the host sees it; what lies on the GPU is copied. */
  toHost(operand: Operand, rows: number): Operand {
    if (operand.span.buffer instanceof SharedArrayBuffer) return operand
    const bytes = Math.max(4, ((rows - 1) * operand.stride + this.config.topK) * 4)
    const span = new HostMemoryLender().lend(bytes, 'ids')
    this.here().kernels.stream.synchronize()
    const from = this.peer.kernels.address(operand)
    if (rows > 0) this.peer.context.download(new Uint8Array(span.buffer as SharedArrayBuffer, 0, bytes), from)
    return { span, offset: 0, stride: operand.stride }
  }

  /** Host views of ids and weights, wherever they lie. */
  hostRouting(routing: Routing): Routing {
    const { tokens } = routing
    return { ...routing, ids: this.toHost(routing.ids, tokens), weights: this.toHost(routing.weights, tokens) }
  }

  /** A handle's own ids and weights to the GPU. */
  uploadRoutes(routes: TokenRoutes, to: { readonly ids: number; readonly weights: number }): DeviceRouting {
    const { context } = this.here()
    context.upload(to.ids, routes.ids)
    context.upload(to.weights, routes.weights)
    const { tokens, topK } = routes
    return { tokens, ids: { address: to.ids, stride: topK }, weights: { address: to.weights, stride: topK } }
  }

  /** The first `tokens` rows of a payload as dispatch takes them; they are encoded into `staging` where they must be. */
  rowsToSend(x: Payload, tokens: number, format: WireFormat, staging: number, label: string): DispatchRows {
    const peer = this.here()
    if (x.kind === 'wire') {
      if (!sameFormat(x.rows.format, format)) throw this.shape(label, nameOf(x.rows.format), nameOf(format))
      const capacity = Math.floor(x.rows.span.byteLength / format.rowBytes)
      if (capacity < tokens) throw this.shape(label, `${capacity} rows`, `${tokens} rows of this dispatch`)
      return { kind: 'wire', address: peer.kernels.addressOf(x.rows.span), stride: format.rowBytes }
    }
    const from = this.given(x.rows, tokens, label)
    const dtype = x.rows.dtype ?? 'f32'
    const elementBytes = dtype === 'bf16' ? 2 : 4
    const aligned = from.address % 16 === 0 && (from.stride * elementBytes) % 16 === 0
    if (aligned && format.dtype === dtype)
      return { kind: 'wire', address: from.address, stride: from.stride * elementBytes }
    if (aligned && format.dtype === 'fp8') return { ...from, kind: dtype }
    peer.encode({ ...from, dtype }, { address: staging, format }, tokens)
    return { kind: 'wire', address: staging, stride: format.rowBytes }
  }

  /** Rows of a caller. @throws ExpertBufferError SY_EP_SHAPE_CHANGED when there are fewer than `needed` */
  given(o: Operand, needed: number, label: string): { address: number; stride: number } {
    const elementBytes = o.dtype === 'bf16' ? 2 : 4
    const elements = o.span.byteLength / elementBytes - o.offset - this.config.hidden
    const capacity = elements < 0 ? 0 : Math.floor(elements / o.stride) + 1
    if (capacity < needed) throw this.shape(label, `${capacity} rows`, `${needed} rows of this dispatch`)
    return { address: this.here().kernels.address(o), stride: o.stride }
  }

  shape(label: string, found: string, expected: string, what = 'rows:'): ExpertBufferError {
    return new ExpertBufferError('SY_EP_SHAPE_CHANGED', { rank: this.rank, label, what, found, expected })
  }

  /** An area of the region, or memory of this buffer, as a span that results show. */
  span(address: number, byteLength: number): MemorySpan {
    return { buffer: { device: this.peer.context.device, address }, byteOffset: 0, byteLength }
  }

  area(area: Area, parity: number, stride: number, rows: number): Operand {
    return { span: this.span(this.peer.at(area, parity), rows * stride * 4), offset: 0, stride }
  }
}

const nameOf = (f: WireFormat): string => `${f.dtype}${f.roundScales ? ' with rounded scales' : ''} of ${f.hidden}`
