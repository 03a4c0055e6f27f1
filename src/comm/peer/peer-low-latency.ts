// The low-latency mode over peer-mapped memory, by the contract: sending waits for nothing, the hook launches the receiving half and then
// reads the counts that results show.
import { DONE } from '../../device/event.js'
import type { Operand } from '../../device/ops.js'
import type { Step } from '../../runtime/wait.js'
import type { CollectiveTag } from '../communicator.js'
import type { DispatchHandle, ExpertRows, Finished, Hook, LowLatencyReceived, Routing } from '../expert-buffer.js'
import { type LowLatencyConfig, wireOf } from '../expert-buffer-config.js'
import type { LowLatencyOperations } from '../guarded-expert-buffer.js'
import { LowLatencyEpHandle, ResultSlots } from '../shm/ep/results.js'
import { copyRouting } from '../shm/ep/routing.js'
import type { Payload, WireFormat } from '../wire/format.js'
import type { PeerCore } from './peer-core.js'
import { writeOut } from './peer-normal.js'
import type { DeviceRouting, DispatchRows } from './peer-rank.js'

const SEND = 1
const RECEIVE = 2

interface Piece {
  readonly ids: number
  readonly weights: number
  readonly decoded: Operand | undefined
}

/** What the two halves of a combine share. */
interface Back {
  readonly kind: 0 | 1 | 2
  readonly y: { readonly address: number; readonly stride: number; readonly dtype: 'bf16' | 'f32' }
}

export class PeerLowLatencyMode implements LowLatencyOperations {
  readonly #core: PeerCore
  readonly #config: LowLatencyConfig
  readonly #capacity: number
  readonly #slots: ResultSlots<LowLatencyEpHandle>
  readonly #pieces: readonly Piece[]
  readonly #inWire: WireFormat
  readonly #staging: number
  readonly #sums: number
  /** f32 expert rows of a caller whose rows do not begin where wide loads may. */
  readonly #aligned: number

  constructor(core: PeerCore, config: LowLatencyConfig) {
    this.#core = core
    this.#config = config
    this.#capacity = core.size * config.slots
    this.#slots = new ResultSlots(core.results, core.rank)
    this.#inWire = wireOf(core.config, config.dispatchWire)
    this.#staging = core.lend(config.slots * this.#inWire.rowBytes)
    this.#sums = core.lend(config.slots * core.f32.rowBytes)
    this.#aligned = core.lend(Math.max(1, core.localExperts) * this.#capacity * core.f32.rowBytes)
    this.#pieces = Array.from({ length: core.results }, () => this.#piece())
  }

  #piece(): Piece {
    const { config, f32 } = this.#core
    const plain = (config.deliver ?? 'f32') === 'f32'
    const bytes = this.#capacity * f32.rowBytes
    return {
      ids: this.#core.lend(this.#config.slots * config.topK * 4),
      weights: this.#core.lend(this.#config.slots * config.topK * 4),
      decoded:
        plain && this.#inWire.dtype !== 'f32'
          ? { span: this.#core.span(this.#core.lend(bytes), bytes), offset: 0, stride: f32.rowBytes / 4 }
          : undefined,
    }
  }

  drop(): void {
    this.#slots.dropAll()
  }

  send(tag: CollectiveTag, routing: Routing, x: Payload): Hook<LowLatencyReceived> {
    const core = this.#core
    const { signals, statistics } = core
    core.checkTokens(routing, this.#config.slots, 'low-latency')
    const layout = core.layout(routing)
    const routes = copyRouting(core.hostRouting(routing), core.config.topK, layout)
    const handle = new LowLatencyEpHandle(this.#slots.next(tag.label), routes)
    const { parity, tokens } = handle
    const piece = this.#pieces[parity]!
    const rows = core.rowsToSend(x, tokens, this.#inWire, this.#staging, tag.label)
    const own = core.uploadRoutes(routes, piece)
    this.#slots.take(handle)
    const sequence = signals.announce(tag, { operation: 'sendLowLatency', parity, tokens, worstCase: -1 })
    core.here().bindSlots(parity, SEND, own, rows)()
    signals.post(sequence)
    statistics.peakSlots = Math.max(statistics.peakSlots, tokens)
    handle.state = 'waiting to be received'
    return () => this.#receive(tag, handle, sequence, own, rows, routing.tokensOfMember)
  }

  *#receive(
    tag: CollectiveTag,
    handle: LowLatencyEpHandle,
    sequence: number,
    own: DeviceRouting,
    rows: DispatchRows,
    expected: readonly number[] | undefined,
  ): Step<Finished<LowLatencyReceived>> {
    const core = this.#core
    const { signals, size, localExperts, config, peer } = core
    this.#slots.claim(handle, 'waiting to be received', 'receive', tag.label)
    yield* signals.awaitAll(sequence, tag)
    signals.compareTokens(tag, sequence, expected)
    const { parity } = handle
    const piece = this.#pieces[parity]!
    core.here().bindSlots(parity, RECEIVE, own, rows)()
    if (piece.decoded) {
      const to = { address: peer.kernels.address(piece.decoded), stride: piece.decoded.stride }
      peer.decode({ address: peer.at('slots', parity), format: this.#inWire }, to, this.#capacity)
    }
    yield* core.settled()
    const info = peer.read('slotInfo', parity, size + localExperts + 2 * localExperts * size)
    const tokensPerExpert = info.slice(size, size + localExperts)
    handle.tokensPerSource = info.slice(0, size)
    core.count(tokensPerExpert)
    handle.state = 'received'
    const { topK } = config
    const all = this.#capacity
    const { slotBytes } = peer.region
    const shown = core.span(peer.at('slots', parity), all * slotBytes)
    const result: LowLatencyReceived = {
      handle,
      x:
        piece.decoded || this.#inWire.dtype === 'f32'
          ? { kind: 'f32', rows: piece.decoded ?? { span: shown, offset: 0, stride: slotBytes / 4 } }
          : { kind: 'wire', rows: { format: this.#inWire, span: shown } },
      ids: core.area('slotIds', parity, topK, all),
      weights: core.area('slotWeights', parity, topK, all),
      sourceToken: core.area('slotTokens', parity, 1, all),
      tokensPerSource: handle.tokensPerSource,
      slotOfRow: core.area('slotOfRow', parity, all, localExperts),
      tokensPerExpert,
      ranges: info.slice(size + localExperts),
      capacity: all,
    }
    return { result, done: DONE }
  }

  sendCombine(tag: CollectiveTag, given: DispatchHandle, rows: ExpertRows, out: Operand): Hook<Operand> {
    const core = this.#core
    const { signals } = core
    const handle = this.#slots.claim(given, 'received', 'send the combine', tag.label)
    const { parity, tokens } = handle
    core.given(out, tokens, tag.label)
    const back = this.#rowsToSend(handle, rows, tag.label)
    const sequence = signals.announce(tag, { operation: 'sendCombineLowLatency', parity, tokens, worstCase: -1 })
    this.#launch(handle, SEND, back)
    signals.post(sequence)
    handle.state = 'waiting for its combine'
    return () => this.#receiveCombine(tag, handle, sequence, back, out)
  }

  #rowsToSend(handle: LowLatencyEpHandle, rows: ExpertRows, label: string): Back {
    const core = this.#core
    const { localExperts, f32 } = core
    const { reduce, combineWire, slots } = this.#config
    if (rows.kind === 'partials' && reduce === 'origin')
      throw core.shape(label, 'rows that are added already', "one row an expert (reduce 'origin')", 'combine rows:')
    // Only rows of slots that something was sent to are read.
    const used = handle.tokensPerSource.reduce((most, n, s) => (n > 0 ? s * slots + n : most), 0)
    const needed = used === 0 ? 0 : rows.kind === 'partials' ? used : Math.max(0, localExperts - 1) * this.#capacity + 1
    const from = core.given(rows.rows, needed, label)
    const kind = rows.kind === 'partials' ? 1 : reduce === 'origin' ? 2 : 0
    const dtype = rows.rows.dtype ?? 'f32'
    const bytes = dtype === 'bf16' ? 2 : 4
    const aligned = from.address % 16 === 0 && (from.stride * bytes) % 16 === 0
    if (aligned && (dtype === 'f32' || combineWire === 'bf16')) return { kind, y: { ...from, dtype } }
    // All rows that the caller's span holds, up to what may be read.
    const held =
      Math.floor((rows.rows.span.byteLength / bytes - rows.rows.offset - core.config.hidden) / from.stride) + 1
    const most = rows.kind === 'partials' ? this.#capacity : localExperts * this.#capacity
    const n = Math.max(0, Math.min(held, most))
    core.here().encode({ ...from, dtype }, { address: this.#aligned, format: f32 }, used === 0 ? 0 : n)
    return { kind, y: { address: this.#aligned, stride: f32.rowBytes / 4, dtype: 'f32' } }
  }

  #launch(handle: LowLatencyEpHandle, phase: number, { kind, y }: Back): void {
    const core = this.#core
    const { parity, tokens } = handle
    const piece = this.#pieces[parity]!
    const { topK } = core.config
    const own = {
      tokens,
      ids: { address: piece.ids, stride: topK },
      weights: { address: piece.weights, stride: topK },
    }
    const to = { address: this.#sums, stride: core.f32.rowBytes / 4, dtype: 'f32' as const }
    core.here().bindBack(parity, phase, kind, y, own, to)()
  }

  *#receiveCombine(
    tag: CollectiveTag,
    handle: LowLatencyEpHandle,
    sequence: number,
    back: Back,
    out: Operand,
  ): Step<Finished<Operand>> {
    const core = this.#core
    this.#slots.claim(handle, 'waiting for its combine', 'receive the combine', tag.label)
    yield* core.signals.awaitAll(sequence, tag)
    core.here()
    this.#launch(handle, RECEIVE, back)
    writeOut(core, this.#sums, out, handle.tokens)
    yield* core.settled()
    handle.state = 'combined or released'
    return { result: out, done: DONE }
  }

  *release(tag: CollectiveTag, handle: DispatchHandle): Step<void> {
    const core = this.#core
    const { parity } = handle
    const sequence = core.signals.announce(tag, { operation: 'release', parity, tokens: 0, worstCase: -1 })
    // Whatever came of it, its slots may be filled again.
    core.here().bindMeet(parity, true)()
    core.signals.post(sequence)
    yield* core.signals.awaitAll(sequence, tag)
    yield* core.settled()
    ;(handle as LowLatencyEpHandle).state = 'combined or released'
  }
}
