// The low-latency mode on shared memory. Each source has its own slots at each destination, so a token is written where it will
// be read without asking; its counts, ids and weights lie beside it and one posted word makes all of it visible.
//
// Slots are written again two results later, without a wait: a rank begins that dispatch only when its combine on the same
// piece is done, and that had waited for every member's combine, sent when the member had read its slots.
import { DONE } from '../../../device/event.js'
import { i32View, type MemorySpan } from '../../../device/memory.js'
import type { Operand } from '../../../device/ops.js'
import type { Step } from '../../../runtime/wait.js'
import type { CollectiveTag } from '../../communicator.js'
import { ExpertBufferError } from '../../errors.js'
import type { DispatchHandle, ExpertRows, Finished, Hook, LowLatencyReceived, Routing } from '../../expert-buffer.js'
import type { LowLatencyConfig } from '../../expert-buffer-config.js'
import type { Payload } from '../../wire/format.js'
import { type Rows, wireRows } from '../../wire/kernels.js'
import type { EpCore } from './core.js'
import { LowLatencyEpHandle, ResultSlots } from './results.js'
import { copyRouting, rowTable, writeMeta } from './routing.js'
import type { Counts, RowMeta } from './views.js'

/** Memory of one of the two parities. */
interface Piece {
  readonly counts: readonly Counts[]
  readonly metas: readonly RowMeta[]
  readonly slots: readonly Rows[]
  readonly decoded: Rows | undefined
  readonly x: Payload
  readonly slotOfRowSpan: MemorySpan
  readonly slotOfRow: Int32Array
  readonly combineSlots: readonly Rows[]
  /** The own combine slots of each member (reduce 'sender'). */
  readonly bySender: readonly Rows[]
}

export class LowLatencyMode {
  readonly #core: EpCore
  readonly #config: LowLatencyConfig
  readonly #capacity: number
  readonly #slots: ResultSlots<LowLatencyEpHandle>
  readonly #pieces: readonly Piece[]
  readonly #staging: Rows | undefined
  /** First own slot at every destination. */
  readonly #bases: Int32Array

  constructor(core: EpCore, config: LowLatencyConfig) {
    this.#core = core
    this.#config = config
    this.#capacity = core.size * config.slots
    this.#slots = new ResultSlots(core.results, core.rank)
    this.#pieces = Array.from({ length: core.results }, (_, parity) => this.#piece(parity))
    const staging = core.views.span(core.member, 'encodedSlots')
    this.#staging = staging && wireRows({ format: core.views.wire(config.dispatchWire), span: staging }, config.slots)
    this.#bases = new Int32Array(core.size).fill(core.member * config.slots)
  }

  #piece(parity: number): Piece {
    const { views, member, size, results } = this.#core
    const { slots: perSource, dispatchWire, combineWire, reduce } = this.#config
    const inWire = views.wire(dispatchWire)
    const outWire = views.wire(combineWire)
    const members = Array.from({ length: size }, (_, m) => m)
    const decodedSpan = views.span(member, 'decodedSlots', parity)
    const ownSlots = views.span(member, 'slots', parity)!
    const plain = decodedSpan !== undefined || inWire.dtype === 'f32'
    const back = reduce === 'sender' ? size : views.config.topK
    const combineSlots = views.wireParts('combineSlots', outWire, back * perSource, parity)
    const own = combineSlots[member]!
    const slotOfRowSpan = views.span(member, 'slotOfRow', parity)!
    return {
      counts: members.map(m => views.counts(m, results + parity)),
      metas: members.map(m => views.meta(m, 'slotMeta', this.#capacity, parity)),
      slots: views.wireParts('slots', inWire, this.#capacity, parity),
      decoded: decodedSpan && wireRows({ format: views.f32, span: decodedSpan }, this.#capacity),
      x: plain
        ? { kind: 'f32', rows: views.operand(decodedSpan ?? ownSlots) }
        : { kind: 'wire', rows: { format: inWire, span: ownSlots } },
      slotOfRowSpan,
      slotOfRow: i32View(slotOfRowSpan),
      combineSlots,
      bySender: members.map(m => ({ ...own, byteOffset: m * perSource * own.rowBytes, capacity: perSource })),
    }
  }

  drop(): void {
    this.#slots.dropAll()
  }

  /** Sends all tokens; waits for nobody. */
  send(tag: CollectiveTag, routing: Routing, x: Payload): Hook<LowLatencyReceived> {
    const { signals, kernels, views, config, member, statistics } = this.#core
    this.#core.checkTokens(routing, this.#config.slots, 'low-latency')
    const layout = this.#core.layout(routing)
    const handle = new LowLatencyEpHandle(this.#slots.next(tag.label), copyRouting(routing, config.topK, layout))
    const piece = this.#pieces[handle.parity]!
    const { tokens } = handle
    const format = views.wire(this.#config.dispatchWire)
    const from = this.#core.encoded(x, tokens, format, this.#staging, tag.label)
    this.#slots.take(handle)
    const a = { operation: 'sendLowLatency', parity: handle.parity, tokens, worstCase: -1 } as const
    const sequence = signals.announce(tag, a)
    handle.table = rowTable(layout, this.#core.size, this.#bases)
    kernels.scatter({ from, to: piece.slots, n: tokens, fromRow: 0, table: handle.table })
    writeMeta(handle.routes, handle.table, piece.metas, this.#core)
    piece.counts[member]!.perLane.set(layout.tokensPerMember)
    signals.post(sequence)
    statistics.peakSlots = Math.max(statistics.peakSlots, tokens)
    handle.state = 'waiting to be received'
    return () => this.#receive(tag, handle, sequence, routing.tokensOfMember)
  }

  *#receive(
    tag: CollectiveTag,
    handle: LowLatencyEpHandle,
    sequence: number,
    expected: readonly number[] | undefined,
  ): Step<Finished<LowLatencyReceived>> {
    const { signals, kernels, size, member } = this.#core
    const { slots } = this.#config
    this.#slots.claim(handle, 'waiting to be received', 'receive', tag.label)
    yield* signals.awaitAll(sequence, tag)
    signals.compareTokens(tag, sequence, expected)
    const piece = this.#pieces[handle.parity]!
    const meta = piece.metas[member]!
    const tokensPerSource = new Int32Array(size)
    for (let s = 0; s < size; s++) {
      const n = signals.isActive(s) ? piece.counts[s]!.perLane[member]! : 0
      tokensPerSource[s] = n
      const from = s * slots
      if (piece.decoded)
        kernels.transfer({ from: piece.slots[member]!, to: piece.decoded, n, fromRow: from, toRow: from })
      this.#blank(meta, from + n, from + slots)
    }
    handle.tokensPerSource = tokensPerSource
    const { ranges, tokensPerExpert } = this.#index(handle, piece)
    this.#core.count(tokensPerExpert)
    handle.state = 'received'
    const result: LowLatencyReceived = {
      handle,
      x: piece.x,
      ids: meta.idsOperand,
      weights: meta.weightsOperand,
      sourceToken: meta.sourcesOperand,
      tokensPerSource,
      slotOfRow: { span: piece.slotOfRowSpan, offset: 0, stride: this.#capacity },
      tokensPerExpert,
      ranges,
      capacity: this.#capacity,
    }
    return { result, done: DONE }
  }

  #blank(meta: RowMeta, from: number, end: number): void {
    const { topK } = this.#core.config
    meta.ids.fill(-1, from * topK, end * topK)
    meta.weights.fill(0, from * topK, end * topK)
    meta.sources.fill(-1, from, end)
  }

  /** Which slots each expert works on, in slot order; blocks of one source follow each other. */
  #index(handle: LowLatencyEpHandle, piece: Piece): { ranges: Int32Array; tokensPerExpert: Int32Array } {
    const { size, member, localExperts, config } = this.#core
    const { topK } = config
    const capacity = this.#capacity
    const { ids } = piece.metas[member]!
    const ranges = new Int32Array(localExperts * size * 2)
    const tokensPerExpert = new Int32Array(localExperts)
    const rowOfSlot = new Int32Array(capacity * topK).fill(-1)
    for (let s = 0; s < size; s++) {
      for (let e = 0; e < localExperts; e++) ranges[(e * size + s) * 2] = tokensPerExpert[e]!
      const first = s * this.#config.slots
      for (let slot = first; slot < first + handle.tokensPerSource[s]!; slot++)
        for (let k = 0; k < topK; k++) {
          const e = ids[slot * topK + k]!
          if (e < 0) continue
          // A token that has an expert twice has one row there: its weights are added to the same row's.
          const row = this.#rowIn(rowOfSlot, slot, k, e, ids, tokensPerExpert[e]!)
          rowOfSlot[slot * topK + k] = row
          if (row !== e * capacity + tokensPerExpert[e]!) continue
          piece.slotOfRow[row] = slot
          tokensPerExpert[e] = tokensPerExpert[e]! + 1
        }
      for (let e = 0; e < localExperts; e++) {
        const at = (e * size + s) * 2
        ranges[at + 1] = tokensPerExpert[e]! - ranges[at]!
      }
    }
    handle.rowOfSlot = rowOfSlot
    return { ranges, tokensPerExpert }
  }

  #rowIn(rows: Int32Array, slot: number, k: number, expert: number, ids: Int32Array, next: number): number {
    const { topK } = this.#core.config
    for (let before = 0; before < k; before++)
      if (ids[slot * topK + before] === expert) return rows[slot * topK + before]!
    return expert * this.#capacity + next
  }

  /** Sends the experts' rows back; waits for nobody. */
  sendCombine(tag: CollectiveTag, given: DispatchHandle, rows: ExpertRows, out: Operand): Hook<Operand> {
    const { signals, size } = this.#core
    const handle = this.#slots.claim(given, 'received', 'send the combine', tag.label)
    const target = this.#core.rowsGiven(out, handle.tokens, tag.label)
    const a = { operation: 'sendCombineLowLatency', parity: handle.parity, tokens: handle.tokens } as const
    const from = this.#rowsToSend(handle, rows, tag.label)
    const sequence = signals.announce(tag, { ...a, worstCase: -1 })
    for (let s = 0; s < size; s++) {
      if (handle.tokensPerSource[s] === 0) continue
      if (this.#config.reduce === 'origin') this.#sendEach(handle, s, from)
      else if (rows.kind === 'partials') this.#sendPartials(handle, s, from)
      else this.#sendReduced(handle, s, from)
    }
    signals.post(sequence)
    handle.state = 'waiting for its combine'
    return () => this.#receiveCombine(tag, handle, sequence, out, target)
  }

  #rowsToSend(handle: LowLatencyEpHandle, rows: ExpertRows, label: string): Rows {
    const { rank, localExperts } = this.#core
    if (rows.kind === 'partials' && this.#config.reduce === 'origin') {
      const found = 'rows that are added already'
      const expected = "one row an expert (reduce 'origin')"
      throw new ExpertBufferError('SY_EP_SHAPE_CHANGED', { rank, label, what: 'combine rows:', found, expected })
    }
    // Only rows of slots that something was sent to are read.
    const used = handle.tokensPerSource.reduce((most, n, s) => (n > 0 ? s * this.#config.slots + n : most), 0)
    if (used === 0) return this.#core.rowsGiven(rows.rows, 0, label)
    const needed = rows.kind === 'partials' ? used : Math.max(0, localExperts - 1) * this.#capacity + 1
    return this.#core.rowsGiven(rows.rows, needed, label)
  }

  #sendPartials(handle: LowLatencyEpHandle, source: number, from: Rows): void {
    const to = this.#pieces[handle.parity]!.combineSlots[source]!
    const toRow = this.#core.member * this.#config.slots
    const fromRow = source * this.#config.slots
    this.#core.kernels.transfer({ from, to, n: handle.tokensPerSource[source]!, fromRow, toRow })
  }

  #sendReduced(handle: LowLatencyEpHandle, source: number, from: Rows): void {
    const { kernels, member, config } = this.#core
    const { topK } = config
    const { slots } = this.#config
    const piece = this.#pieces[handle.parity]!
    const n = handle.tokensPerSource[source]!
    const [begin, end] = [source * slots * topK, (source * slots + n) * topK]
    kernels.weightedSum({
      from,
      to: piece.combineSlots[source]!,
      n,
      topK,
      index: handle.rowOfSlot.subarray(begin, end),
      weights: piece.metas[member]!.weights.subarray(begin, end),
      toRow: member * slots,
    })
  }

  /** Every expert row to slot [k, token] of its origin. */
  #sendEach(handle: LowLatencyEpHandle, source: number, from: Rows): void {
    const { kernels, member, config } = this.#core
    const { topK } = config
    const { slots } = this.#config
    const piece = this.#pieces[handle.parity]!
    const { sources } = piece.metas[member]!
    const n = handle.tokensPerSource[source]!
    const fromIndex = new Int32Array(n * topK)
    const toIndex = new Int32Array(n * topK)
    let rows = 0
    for (let slot = source * slots; slot < source * slots + n; slot++)
      for (let k = 0; k < topK; k++) {
        const row = handle.rowOfSlot[slot * topK + k]!
        if (row < 0) continue
        fromIndex[rows] = row
        toIndex[rows++] = k * slots + sources[slot]!
      }
    kernels.transfer({ from, to: piece.combineSlots[source]!, n: rows, fromIndex, toIndex })
  }

  *#receiveCombine(
    tag: CollectiveTag,
    handle: LowLatencyEpHandle,
    sequence: number,
    out: Operand,
    target: Rows,
  ): Step<Finished<Operand>> {
    const { signals } = this.#core
    this.#slots.claim(handle, 'waiting for its combine', 'receive the combine', tag.label)
    yield* signals.awaitAll(sequence, tag)
    if (this.#config.reduce === 'sender') this.#addMembers(handle, target)
    else this.#addExperts(handle, target)
    handle.state = 'combined or released'
    return { result: out, done: DONE }
  }

  #addMembers(handle: LowLatencyEpHandle, out: Rows): void {
    const first = this.#bases[0]!
    const table = handle.table.map(row => (row < 0 ? -1 : row - first))
    const from = this.#pieces[handle.parity]!.bySender
    this.#core.kernels.sum({ from, out, n: handle.tokens, outRow: 0, table })
  }

  #addExperts(handle: LowLatencyEpHandle, out: Rows): void {
    const { kernels, member, config, size, expertStart } = this.#core
    const { topK } = config
    const { slots } = this.#config
    const { tokens, table } = handle
    const { ids, weights } = handle.routes
    const index = new Int32Array(tokens * topK).fill(-1)
    for (let t = 0; t < tokens; t++)
      for (let k = 0; k < topK; k++) {
        const e = ids[t * topK + k]!
        // A slot of a dead member has no row in the table.
        const m = e < 0 ? -1 : memberOf(expertStart, e)
        if (m >= 0 && table[t * size + m]! >= 0) index[t * topK + k] = k * slots + t
      }
    const from = this.#pieces[handle.parity]!.combineSlots[member]!
    kernels.weightedSum({ from, to: out, n: tokens, topK, index, weights })
  }

  *release(tag: CollectiveTag, handle: LowLatencyEpHandle): Step<void> {
    const { signals } = this.#core
    const a = { operation: 'release', parity: handle.parity, tokens: 0, worstCase: -1 } as const
    const sequence = signals.announce(tag, a)
    signals.post(sequence)
    yield* signals.awaitAll(sequence, tag)
    handle.state = 'combined or released'
  }
}

function memberOf(expertStart: Int32Array, expert: number): number {
  let m = 0
  while (expertStart[m + 1]! <= expert) m++
  return m
}
