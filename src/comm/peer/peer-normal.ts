// The normal mode over peer-mapped memory, by the contract: counts are exchanged by kernels and read by the host when notify ends, since
// handles show them. Rows, ids and weights never touch the host.
import { Unreachable } from '../../config/errors.js'
import { DONE } from '../../device/event.js'
import type { Operand } from '../../device/ops.js'
import type { Step } from '../../runtime/wait.js'
import type { CollectiveTag } from '../communicator.js'
import { ExpertBufferError } from '../errors.js'
import type { DispatchHandle, Finished, Hook, NormalHandle, NormalReceived, Routing } from '../expert-buffer.js'
import { type NormalConfig, wireOf } from '../expert-buffer-config.js'
import type { NormalOperations } from '../guarded-expert-buffer.js'
import { NormalEpHandle, ResultSlots } from '../shm/ep/results.js'
import { copyRouting } from '../shm/ep/routing.js'
import type { Payload, WireFormat } from '../wire/format.js'
import type { PeerCore } from './peer-core.js'
import type { DeviceRouting } from './peer-rank.js'
import { INFO } from './region.js'

/** Memory of one of the alternating results, beside its areas of the region. */
interface Piece {
  readonly ids: number
  readonly weights: number
  /** f32 rows that experts write; where partial rows travel as f32 they lie in the region. */
  readonly partials: Operand
  /** f32 rows that are shown; undefined when rows are shown as they travelled. */
  readonly decoded: Operand | undefined
}

export class PeerNormalMode implements NormalOperations {
  readonly #core: PeerCore
  readonly #config: NormalConfig
  readonly #slots: ResultSlots<NormalEpHandle>
  readonly #pieces: readonly Piece[]
  readonly #inWire: WireFormat
  readonly #outWire: WireFormat
  readonly #staging: number
  readonly #sums: number
  readonly #routing: (DeviceRouting | undefined)[] = []

  constructor(core: PeerCore, config: NormalConfig) {
    this.#core = core
    this.#config = config
    this.#slots = new ResultSlots(core.results, core.rank)
    this.#inWire = wireOf(core.config, config.dispatchWire)
    this.#outWire = wireOf(core.config, config.combineWire)
    this.#staging = core.lend(config.maxTokens * this.#inWire.rowBytes)
    this.#sums = core.lend(config.maxTokens * core.f32.rowBytes)
    this.#pieces = Array.from({ length: core.results }, (_, parity) => this.#piece(parity))
  }

  #piece(parity: number): Piece {
    const { peer, config, f32 } = this.#core
    const { rows } = peer.region
    const stride = f32.rowBytes / 4
    const own = (): Operand => ({
      span: this.#core.span(this.#core.lend(rows * f32.rowBytes), rows * f32.rowBytes),
      offset: 0,
      stride,
    })
    const plain = (config.deliver ?? 'f32') === 'f32'
    return {
      ids: this.#core.lend(this.#config.maxTokens * config.topK * 4),
      weights: this.#core.lend(this.#config.maxTokens * config.topK * 4),
      partials: this.#outWire.dtype === 'f32' ? this.#core.area('partials', parity, stride, rows) : own(),
      decoded: plain && this.#inWire.dtype !== 'f32' ? own() : undefined,
    }
  }

  drop(): void {
    this.#slots.dropAll()
  }

  *notify(tag: CollectiveTag, routing: Routing, worstCase: number | undefined): Step<NormalHandle> {
    const { signals, config } = this.#core
    this.#core.checkTokens(routing, this.#config.maxTokens, 'normal')
    const layout = this.#core.layout(routing)
    const routes = copyRouting(this.#core.hostRouting(routing), config.topK, layout)
    const handle = new NormalEpHandle(this.#slots.next(tag.label), routes)
    const a = { operation: 'notify', parity: handle.parity, tokens: handle.tokens, worstCase: worstCase ?? -1 } as const
    const sequence = signals.announce(tag, a)
    signals.post(sequence)
    yield* signals.awaitAll(sequence, tag)
    signals.compareTokens(tag, sequence, routing.tokensOfMember)
    const tooMuch = yield* this.#count(handle, sequence, tag.label, worstCase)
    if (tooMuch) {
      // Everybody has seen the same counts and throws; nobody may count again before all have.
      yield* this.#meet(tag, handle.parity)
      throw tooMuch
    }
    this.#slots.take(handle)
    return handle
  }

  *renotify(tag: CollectiveTag, given: NormalHandle): Step<NormalHandle> {
    const { signals } = this.#core
    if (!(given instanceof NormalEpHandle)) throw new Unreachable('a handle of another kind of buffer')
    const handle = new NormalEpHandle(this.#slots.next(tag.label), given.routes)
    const { origin, bound, received } = given.counts
    const sequence = signals.announce(tag, {
      ...{ operation: 'renotify', parity: handle.parity, tokens: handle.tokens },
      worstCase: origin,
    })
    signals.post(sequence)
    yield* signals.awaitAll(sequence, tag)
    // Tables live with the piece of memory, which may be another one now: the GPU makes them again.
    yield* this.#count(handle, origin, tag.label, bound === received ? undefined : bound)
    this.#slots.take(handle)
    return handle
  }

  /** Counts on the GPU, then reads them. The same error on all members when some member would receive too much. */
  *#count(
    handle: NormalEpHandle,
    origin: number,
    label: string,
    worstCase: number | undefined,
  ): Step<ExpertBufferError | null> {
    const core = this.#core
    const { size, member, signals, localExperts, peer } = core
    const { parity } = handle
    const routing = core.uploadRoutes(handle.routes, this.#pieces[parity]!)
    this.#routing[parity] = routing
    peer.bindNotify(parity, routing)()
    yield* core.settled()
    const info = peer.read('info', parity, INFO.experts + localExperts)
    const stride = peer.region.countStride
    const counts = peer.read('counts', parity, 2 * size * stride)
    const limit = Math.min(peer.region.rows, worstCase ?? peer.region.rows)
    let error: ExpertBufferError | null = null
    for (let d = 0; d < size; d++) {
      let rows = 0
      for (let s = 0; s < size; s++) if (signals.isActive(s)) rows += counts[2 * (s * stride + d)]!
      if (rows > limit)
        error ??= new ExpertBufferError('SY_EP_RECEIVES_TOO_MUCH', { rank: signals.rankOf(d), rows, label, limit })
    }
    const received = info[INFO.received]!
    handle.counts = {
      ...{ origin, received, bound: worstCase ?? received, incoming: new Int32Array(0) },
      sourceStart: info.slice(INFO.sourceStart, INFO.sourceStart + size + 1),
      tokensPerExpert: info.slice(INFO.experts, INFO.experts + localExperts),
      tokensOfMember: new Int32Array(size),
    }
    void member
    return error
  }

  *send(tag: CollectiveTag, given: NormalHandle, x: Payload): Step<Hook<NormalReceived>> {
    const { signals } = this.#core
    const handle = this.#slots.claim(given, 'waiting to be sent', 'send', tag.label)
    const { parity, tokens } = handle
    const rows = this.#core.rowsToSend(x, tokens, this.#inWire, this.#staging, tag.label)
    const sequence = signals.announce(tag, { operation: 'send', parity, tokens, worstCase: -1 })
    this.#core.here().bindDispatch(parity, this.#routing[parity]!, rows)()
    signals.post(sequence)
    handle.state = 'waiting to be received'
    return () => this.#receive(tag, handle, sequence)
  }

  *#receive(tag: CollectiveTag, handle: NormalEpHandle, sequence: number): Step<Finished<NormalReceived>> {
    const core = this.#core
    const { signals, peer, statistics, config } = core
    this.#slots.claim(handle, 'waiting to be received', 'receive', tag.label)
    yield* signals.awaitAll(sequence, tag)
    core.here()
    const { parity, received, bound } = handle
    const piece = this.#pieces[parity]!
    const { topK } = config
    const { stream, addressOf } = { stream: peer.kernels.stream, addressOf: (o: Operand) => peer.kernels.address(o) }
    if (piece.decoded) {
      const to = { address: addressOf(piece.decoded), stride: piece.decoded.stride }
      peer.decode({ address: peer.at('rows', parity), format: this.#inWire }, to, received)
    }
    stream.fill(peer.at('ids', parity) + received * topK * 4, 0xff, (bound - received) * topK * 4)
    stream.fill(peer.at('weights', parity) + received * topK * 4, 0, (bound - received) * topK * 4)
    stream.fill(peer.at('tokens', parity) + received * 4, 0xff, (bound - received) * 4)
    yield* core.settled()
    core.count(handle.tokensPerExpert)
    statistics.peakReceived = Math.max(statistics.peakReceived, received)
    handle.state = 'received'
    const { rows, rowBytes } = peer.region
    const shown = core.span(peer.at('rows', parity), rows * rowBytes)
    const result: NormalReceived = {
      handle,
      x:
        piece.decoded || this.#inWire.dtype === 'f32'
          ? { kind: 'f32', rows: piece.decoded ?? { span: shown, offset: 0, stride: rowBytes / 4 } }
          : { kind: 'wire', rows: { format: this.#inWire, span: shown } },
      ids: core.area('ids', parity, topK, rows),
      weights: core.area('weights', parity, topK, rows),
      sourceToken: core.area('tokens', parity, 1, rows),
      partials: piece.partials,
    }
    return { result, done: DONE }
  }

  *sendCombine(
    tag: CollectiveTag,
    given: NormalHandle,
    out: Operand,
    partials: Operand | undefined,
  ): Step<Hook<Operand>> {
    const core = this.#core
    const { signals } = core
    const handle = this.#slots.claim(given, 'received', 'send the combine', tag.label)
    const { parity, tokens, received } = handle
    core.given(out, tokens, tag.label)
    const own = this.#pieces[parity]!.partials
    const from = partials ?? own
    const rows = core.given(from, received, tag.label)
    const sequence = signals.announce(tag, { operation: 'sendCombine', parity, tokens, worstCase: -1 })
    const peer = core.here()
    const inPlace = from === own && this.#outWire.dtype === 'f32'
    const to = { address: peer.at('partials', parity), format: this.#outWire }
    if (!inPlace) peer.encode({ ...rows, dtype: from.dtype ?? 'f32' }, to, received)
    signals.post(sequence)
    handle.state = 'waiting for its combine'
    return () => this.#receiveCombine(tag, handle, sequence, out)
  }

  *#receiveCombine(
    tag: CollectiveTag,
    handle: NormalEpHandle,
    sequence: number,
    out: Operand,
  ): Step<Finished<Operand>> {
    const core = this.#core
    this.#slots.claim(handle, 'waiting for its combine', 'receive the combine', tag.label)
    yield* core.signals.awaitAll(sequence, tag)
    const { parity, tokens } = handle
    const peer = core.here()
    // Through f32 rows of our own: a caller's rows may begin anywhere.
    const stride = core.f32.rowBytes / 4
    peer.bindCombine(parity, tokens, { address: this.#sums, stride, dtype: 'f32' })()
    writeOut(core, this.#sums, out, tokens)
    yield* core.settled()
    handle.state = 'combined or released'
    return { result: out, done: DONE }
  }

  /** Ends a result whatever it has come to. */
  *release(tag: CollectiveTag, handle: DispatchHandle): Step<void> {
    yield* this.#meet(tag, handle.parity)
    ;(handle as NormalEpHandle).state = 'combined or released'
  }

  *#meet(tag: CollectiveTag, parity: number): Step<void> {
    const { signals } = this.#core
    const sequence = signals.announce(tag, { operation: 'release', parity, tokens: 0, worstCase: -1 })
    signals.post(sequence)
    yield* signals.awaitAll(sequence, tag)
    yield* this.#core.settled()
  }
}

/** f32 rows of the buffer to a caller's rows. */
export function writeOut(core: PeerCore, from: number, out: Operand, rows: number): void {
  const { kernels } = core.peer
  const to = { address: kernels.address(out), stride: out.stride }
  if (out.dtype === 'bf16') {
    const format = { ...wireOf(core.config, 'bf16'), rowBytes: out.stride * 2 }
    core.peer.encode(
      { address: from, stride: core.f32.rowBytes / 4, dtype: 'f32' },
      { address: to.address, format },
      rows,
    )
  } else core.peer.decode({ address: from, format: core.f32 }, to, rows)
}
