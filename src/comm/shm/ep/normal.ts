// The normal mode on shared memory. notify exchanges counts; after that every sender knows the row of each of its tokens at
// each destination, so `direct` transit writes it there once, and combine reads the peers' partial rows where they lie.
// With rings rows pass through normal-rings.ts instead; ids, weights and sources go straight to their rows either way.
//
// What a result shows is overwritten only after all members have posted the next notify on the same piece, which they do
// when their combine is done: so reading and writing never meet, without any further wait.
import { Unreachable } from '../../../config/errors.js'
import { DONE } from '../../../device/event.js'
import type { Operand } from '../../../device/ops.js'
import type { Step } from '../../../runtime/wait.js'
import type { CollectiveTag } from '../../communicator.js'
import { ExpertBufferError } from '../../errors.js'
import type { Finished, Hook, NormalHandle, NormalReceived, Routing } from '../../expert-buffer.js'
import { channelsOf, type NormalConfig, ringOf } from '../../expert-buffer-config.js'
import type { Payload } from '../../wire/format.js'
import { type Rows, wireRows } from '../../wire/kernels.js'
import type { EpCore } from './core.js'
import { CombineJob, DispatchJob } from './normal-rings.js'
import { NormalEpHandle, ResultSlots } from './results.js'
import { type RingRun, Rings } from './rings.js'
import { copyRouting, rowTable, writeMeta } from './routing.js'
import type { Counts, RowMeta } from './views.js'

/** Memory of one of the alternating results. */
interface Piece {
  readonly counts: readonly Counts[]
  readonly metas: readonly RowMeta[]
  /** Wire rows of all members; with rings only the own are there, or none. */
  readonly received: readonly Rows[]
  /** The own rows as f32, when they travel in another format. */
  readonly decoded: Rows | undefined
  readonly x: Payload
  /** What the experts write, of all members. */
  readonly partials: readonly Rows[]
  readonly partialsOperand: Operand
  /** Partial rows in the wire format of combine, when that is not f32 and there are no rings. */
  readonly encodedPartials: readonly Rows[] | undefined
}

export class NormalMode {
  readonly #core: EpCore
  readonly #config: NormalConfig
  readonly #channels: number
  readonly #slots: ResultSlots<NormalEpHandle>
  readonly #pieces: readonly Piece[]
  readonly #staging: Rows | undefined
  readonly #rings: Rings | null

  constructor(core: EpCore, config: NormalConfig) {
    this.#core = core
    this.#config = config
    this.#channels = channelsOf(core.config)
    this.#slots = new ResultSlots(core.results, core.rank)
    this.#pieces = Array.from({ length: core.results }, (_, parity) => this.#piece(parity))
    const { views, member } = core
    const staging = views.span(member, 'encodedTokens')
    const format = views.wire(config.dispatchWire)
    this.#staging = staging && wireRows({ format, span: staging }, config.maxTokens)
    const ring = ringOf(config)
    const widest = Math.max(format.rowBytes, views.wire(config.combineWire).rowBytes)
    this.#rings = ring && new Rings(views, core.signals, member, ring, widest)
  }

  #piece(parity: number): Piece {
    const { views, member, size } = this.#core
    const rows = views.received
    const inWire = views.wire(this.#config.dispatchWire)
    const outWire = views.wire(this.#config.combineWire)
    const decodedSpan = views.span(member, 'decoded', parity)
    const hasReceived = views.span(member, 'received', parity) !== undefined
    const received = hasReceived ? views.wireParts('received', inWire, rows, parity) : []
    const own = received[member]
    const decoded = decodedSpan && wireRows({ format: views.f32, span: decodedSpan }, rows)
    const show = decodedSpan ?? views.span(member, 'received', parity)!
    const plain = decoded !== undefined || inWire.dtype === 'f32'
    if (!plain && !own) throw new Unreachable('received rows have no memory')
    const members = Array.from({ length: size }, (_, m) => m)
    return {
      counts: members.map(m => views.counts(m, parity)),
      metas: members.map(m => views.meta(m, 'rowMeta', rows, parity)),
      received,
      decoded,
      x: plain ? { kind: 'f32', rows: views.operand(show) } : { kind: 'wire', rows: { format: inWire, span: show } },
      partials: views.wireParts('partials', views.f32, rows, parity),
      partialsOperand: views.operand(views.span(member, 'partials', parity)!),
      encodedPartials: views.span(member, 'encodedPartials', parity)
        ? views.wireParts('encodedPartials', outWire, rows, parity)
        : undefined,
    }
  }

  drop(): void {
    this.#slots.dropAll()
    this.#rings?.reset()
  }

  *notify(tag: CollectiveTag, routing: Routing, worstCase: number | undefined): Step<NormalHandle> {
    const { signals, config, member } = this.#core
    this.#core.checkTokens(routing, this.#config.maxTokens, 'normal')
    const layout = this.#core.layout(routing)
    const handle = new NormalEpHandle(this.#slots.next(tag.label), copyRouting(routing, config.topK, layout))
    const own = this.#pieces[handle.parity]!.counts[member]!
    own.perExpert.set(layout.tokensPerExpert)
    this.#countLanes(handle, own.perLane)
    const a = { operation: 'notify', parity: handle.parity, tokens: handle.tokens, worstCase: worstCase ?? -1 } as const
    const sequence = signals.announce(tag, a)
    signals.post(sequence)
    yield* signals.awaitAll(sequence, tag)
    signals.compareTokens(tag, sequence, routing.tokensOfMember)
    const tooMuch = this.#settleCounts(handle, sequence, tag.label, worstCase)
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
    handle.counts = given.counts
    handle.table = given.table
    const a = { operation: 'renotify', parity: handle.parity, tokens: handle.tokens } as const
    const sequence = signals.announce(tag, { ...a, worstCase: given.counts.origin })
    signals.post(sequence)
    yield* signals.awaitAll(sequence, tag)
    this.#slots.take(handle)
    return handle
  }

  /** Tokens of each (member, channel): a channel has an equal, contiguous range of tokens. */
  #countLanes(handle: NormalEpHandle, perLane: Int32Array): void {
    const { size } = this.#core
    const { tokens, layout } = handle
    if (this.#channels === 1) {
      perLane.set(layout.tokensPerMember)
      return
    }
    perLane.fill(0)
    const each = Math.ceil(tokens / this.#channels)
    for (let i = 0; i < layout.tokenInMember.length; i++) {
      if (!layout.tokenInMember[i]) continue
      const lane = (i % size) * this.#channels + Math.floor(Math.floor(i / size) / each)
      perLane[lane] = perLane[lane]! + 1
    }
  }

  /** Reads everybody's counts. The same error on all members when some member would receive too much. */
  #settleCounts(
    handle: NormalEpHandle,
    sequence: number,
    label: string,
    worstCase: number | undefined,
  ): ExpertBufferError | null {
    const { size, member, signals, views, expertStart, localExperts } = this.#core
    const channels = this.#channels
    const counts = this.#pieces[handle.parity]!.counts
    const sourceStart = new Int32Array(size + 1)
    const incoming = new Int32Array(size * channels)
    const bases = new Int32Array(size)
    const limit = Math.min(views.received, worstCase ?? views.received)
    let error: ExpertBufferError | null = null
    for (let d = 0; d < size; d++) {
      let rows = 0
      for (let s = 0; s < size; s++) {
        if (s === member) bases[d] = rows
        if (d === member) sourceStart[s] = rows
        if (!signals.isActive(s)) continue
        for (let c = 0; c < channels; c++) {
          const n = counts[s]!.perLane[d * channels + c]!
          if (d === member) incoming[s * channels + c] = n
          rows += n
        }
      }
      if (d === member) sourceStart[size] = rows
      if (rows > limit)
        error ??= new ExpertBufferError('SY_EP_RECEIVES_TOO_MUCH', { rank: signals.rankOf(d), rows, label, limit })
    }
    const tokensPerExpert = new Int32Array(localExperts)
    const tokensOfMember = new Int32Array(size)
    for (let s = 0; s < size; s++) {
      if (!signals.isActive(s)) continue
      tokensOfMember[s] = signals.tokensOf(s, sequence)
      const { perExpert } = counts[s]!
      for (let e = 0; e < localExperts; e++)
        tokensPerExpert[e] = tokensPerExpert[e]! + perExpert[expertStart[member]! + e]!
    }
    const received = sourceStart[size]!
    const bound = worstCase ?? received
    handle.counts = { origin: sequence, received, bound, sourceStart, tokensPerExpert, tokensOfMember, incoming }
    handle.table = rowTable(handle.layout, size, bases)
    return error
  }

  *send(tag: CollectiveTag, given: NormalHandle, x: Payload): Step<Hook<NormalReceived>> {
    const { signals, kernels, views } = this.#core
    const handle = this.#slots.claim(given, 'waiting to be sent', 'send', tag.label)
    if (this.#rings) yield* this.#rings.settle()
    const piece = this.#pieces[handle.parity]!
    const format = views.wire(this.#config.dispatchWire)
    const from = this.#core.encoded(x, handle.tokens, format, this.#staging, tag.label)
    const a = { operation: 'send', parity: handle.parity, tokens: handle.tokens, worstCase: -1 } as const
    const sequence = signals.announce(tag, a)
    writeMeta(handle.routes, handle.table, piece.metas, this.#core)
    let run: RingRun | null = null
    if (this.#rings) {
      const to = piece.decoded ?? piece.received[this.#core.member]!
      const job = new DispatchJob(tag, this.#core.member, handle, this.#rings.config, kernels, from, to, format)
      signals.post(sequence)
      run = this.#rings.begin(job)
      job.copyOwn()
    } else {
      const { table, tokens } = handle
      kernels.scatter({ from, to: piece.received, n: tokens, fromRow: 0, table })
      signals.post(sequence)
    }
    handle.state = 'waiting to be received'
    return () => this.#receive(tag, handle, sequence, run)
  }

  *#receive(
    tag: CollectiveTag,
    handle: NormalEpHandle,
    sequence: number,
    run: RingRun | null,
  ): Step<Finished<NormalReceived>> {
    const { signals, kernels, member, statistics, config } = this.#core
    this.#slots.claim(handle, 'waiting to be received', 'receive', tag.label)
    yield* signals.awaitAll(sequence, tag)
    if (run) yield* this.#finish(run)
    const piece = this.#pieces[handle.parity]!
    const { received, bound } = handle
    if (!run && piece.decoded) kernels.transfer({ from: piece.received[member]!, to: piece.decoded, n: received })
    const meta = piece.metas[member]!
    meta.ids.fill(-1, received * config.topK, bound * config.topK)
    meta.weights.fill(0, received * config.topK, bound * config.topK)
    meta.sources.fill(-1, received, bound)
    this.#core.count(handle.tokensPerExpert)
    statistics.peakReceived = Math.max(statistics.peakReceived, received)
    handle.state = 'received'
    const result: NormalReceived = {
      handle,
      x: piece.x,
      ids: meta.idsOperand,
      weights: meta.weightsOperand,
      sourceToken: meta.sourcesOperand,
      partials: piece.partialsOperand,
    }
    return { result, done: DONE }
  }

  *sendCombine(
    tag: CollectiveTag,
    given: NormalHandle,
    out: Operand,
    partials: Operand | undefined,
  ): Step<Hook<Operand>> {
    const { signals, kernels, views, member } = this.#core
    const handle = this.#slots.claim(given, 'received', 'send the combine', tag.label)
    if (this.#rings) yield* this.#rings.settle()
    const piece = this.#pieces[handle.parity]!
    const { received } = handle
    const target = this.#core.rowsGiven(out, handle.tokens, tag.label)
    const from = partials ? this.#core.rowsGiven(partials, received, tag.label) : piece.partials[member]!
    const a = { operation: 'sendCombine', parity: handle.parity, tokens: handle.tokens, worstCase: -1 } as const
    const sequence = signals.announce(tag, a)
    let run: RingRun | null = null
    if (this.#rings) {
      const format = views.wire(this.#config.combineWire)
      const job = { tag, handle, kernels, member, from, out: target, format }
      signals.post(sequence)
      run = this.#rings.begin(new CombineJob(job, this.#rings.config))
    } else {
      if (piece.encodedPartials) kernels.transfer({ from, to: piece.encodedPartials[member]!, n: received })
      else if (!sameRows(from, piece.partials[member]!))
        kernels.transfer({ from, to: piece.partials[member]!, n: received })
      signals.post(sequence)
    }
    handle.state = 'waiting for its combine'
    return () => this.#receiveCombine(tag, handle, sequence, run, out, target)
  }

  *#receiveCombine(
    tag: CollectiveTag,
    handle: NormalEpHandle,
    sequence: number,
    run: RingRun | null,
    out: Operand,
    target: Rows,
  ): Step<Finished<Operand>> {
    this.#slots.claim(handle, 'waiting for its combine', 'receive the combine', tag.label)
    yield* this.#core.signals.awaitAll(sequence, tag)
    if (run) yield* this.#finish(run)
    else {
      const piece = this.#pieces[handle.parity]!
      const from = piece.encodedPartials ?? piece.partials
      this.#core.kernels.sum({ from, out: target, n: handle.tokens, outRow: 0, table: handle.table })
    }
    handle.state = 'combined or released'
    return { result: out, done: DONE }
  }

  /** Ends a result whatever it has come to; rows on their way through rings are taken first. */
  *release(tag: CollectiveTag, handle: NormalEpHandle): Step<void> {
    if (this.#rings) yield* this.#rings.settle()
    yield* this.#meet(tag, handle.parity)
    handle.state = 'combined or released'
  }

  *#meet(tag: CollectiveTag, parity: number): Step<void> {
    const { signals } = this.#core
    const sequence = signals.announce(tag, { operation: 'release', parity, tokens: 0, worstCase: -1 })
    signals.post(sequence)
    yield* signals.awaitAll(sequence, tag)
  }

  *#finish(run: RingRun): Step<void> {
    yield* this.#rings!.finish(run)
    this.#core.statistics.ringStalls = this.#rings!.stalls
  }
}

const sameRows = (a: Rows, b: Rows): boolean =>
  a.u8.buffer === b.u8.buffer &&
  a.u8.byteOffset + a.byteOffset === b.u8.byteOffset + b.byteOffset &&
  a.rowBytes === b.rowBytes
