// Communicator over memory that the ranks of a node share.
//
// One wait per collective: a member copies its contribution into its own half of the exchange, publishes the header,
// bumps its epoch, waits until every member's epoch has reached the same number, and reads. Halves alternate; a half is
// written again two collectives later, and by then every member has passed the one between, so it has finished reading.
import { f32View } from '../../device/memory.js'
import type { Operand } from '../../device/ops.js'
import type { ControlBlock } from '../../runtime/control.js'
import { RankError } from '../../runtime/errors.js'
import type { Step, Wait } from '../../runtime/wait.js'
import type { CollectiveTag, Communicator, Parity, RowRange, Window } from '../communicator.js'
import { CommError } from '../errors.js'
import { wireFormat } from '../wire/format.js'
import { operandRows, type Rows, type WireKernels } from '../wire/kernels.js'
import { createWireKernels } from '../wire/native.js'
import { type ExchangeHalf, type ExchangeMemory, HEADER_FIELDS, halves } from './exchange.js'
import { Windows } from './windows.js'

const COLLECTIVES = [
  'barrier',
  'all_gather_words',
  'all_gather',
  'all_reduce',
  'reduce_scatter',
  'gather_columns',
  'broadcast',
  'reduce',
] as const
type Collective = (typeof COLLECTIVES)[number]

export interface ShmGroup {
  readonly name: string
  /** Index of the group's epoch word in the control block. */
  readonly index: number
  readonly ranks: readonly number[]
  readonly memory: ExchangeMemory
}

/** Waits for one member's epoch; reused for every wait of a communicator, so that a step allocates nothing. */
class EpochWait implements Wait {
  readonly words: Int32Array
  index = 0
  peer = -1
  target = 0
  label = ''
  constructor(words: Int32Array) {
    this.words = words
  }
  ready(): boolean {
    return ((Atomics.load(this.words, this.index) - this.target) | 0) >= 0
  }
  describe(): string {
    return `${this.label}, waiting for rank ${this.peer}`
  }
}

export class ShmCommunicator implements Communicator {
  readonly group: string
  readonly member: number
  readonly size: number
  readonly ranks: readonly number[]
  readonly #halves: readonly (readonly [ExchangeHalf, ExchangeHalf])[]
  readonly #windows: Windows
  readonly #payloadBytes: number
  readonly #words: Int32Array
  readonly #epochs: readonly number[]
  readonly #wait: EpochWait
  readonly #kernels: WireKernels
  readonly #publishedRows = new Map<number, readonly [Rows[], Rows[]]>()
  readonly #operandRows = new WeakMap<Operand, Rows>()
  #table = new Int32Array(0)
  #step = 0
  #sequence = 0

  /** @param kernels add rows; native ones where the addon loads */
  constructor(control: ControlBlock, group: ShmGroup, rank: number, kernels: WireKernels = createWireKernels()) {
    this.#kernels = kernels
    this.group = group.name
    this.ranks = group.ranks
    this.size = group.ranks.length
    this.member = group.ranks.indexOf(rank)
    this.#halves = group.ranks.map((_, m) => halves(group.memory, m))
    this.#windows = new Windows(this.#halves, this.member)
    this.#payloadBytes = group.memory.payloadBytes
    this.#words = control.words
    this.#epochs = group.ranks.map(r => control.epochIndex(r, group.index))
    this.#wait = new EpochWait(control.words)
  }

  beginStep(step: number): void {
    this.#step = step
  }

  *barrier(tag: CollectiveTag): Step<void> {
    this.#publish('barrier', tag, 0, 0, 0)
    yield* this.#arrive('barrier', tag)
  }

  *allGatherWords(tag: CollectiveTag, own: Int32Array, all: Int32Array): Step<void> {
    const half = this.#room(tag, own.length * 4)
    half.words.set(own)
    this.#publish('all_gather_words', tag, own.length, 1, 0)
    yield* this.#arrive('all_gather_words', tag)
    for (let m = 0; m < this.size; m++) all.set(this.#peer(m).words.subarray(0, own.length), m * own.length)
  }

  *allGather(tag: CollectiveTag, x: Operand, out: Operand, width: number, counts: ArrayLike<number>): Step<void> {
    const rows = counts[this.member]!
    const half = this.#room(tag, rows * width * 4)
    readRows(half.floats, 0, x, width, rows)
    yield* this.#gather(tag, out, width, counts)
  }

  *allGatherWritten(tag: CollectiveTag, out: Operand, width: number, counts: ArrayLike<number>): Step<void> {
    this.#room(tag, counts[this.member]! * width * 4)
    yield* this.#gather(tag, out, width, counts)
  }

  *#gather(tag: CollectiveTag, out: Operand, width: number, counts: ArrayLike<number>): Step<void> {
    this.#publish('all_gather', tag, width, counts[this.member]!, 0)
    yield* this.#arrive('all_gather', tag, counts)
    let row = 0
    for (let m = 0; m < this.size; m++) {
      writeRows(out, row, this.#peer(m).floats, 0, width, counts[m]!)
      row += counts[m]!
    }
  }

  windows(width: number): readonly [Window, Window] {
    return this.#windows.of(width)
  }

  get nextParity(): Parity {
    return ((this.#sequence + 1) & 1) as Parity
  }

  *reduce(tag: CollectiveTag, x: Operand, width: number, rows: RowRange): Step<Parity> {
    const half = this.#room(tag, rows.all * width * 4)
    readRows(half.floats, 0, x, width, rows.all)
    const parity = this.nextParity
    this.#windows.setFirst(parity, rows.from)
    this.#publish('reduce', tag, width, rows.all, 0)
    yield* this.#arrive('reduce', tag)
    return parity
  }

  *allReduce(tag: CollectiveTag, x: Operand, width: number, rows: number): Step<void> {
    const half = this.#room(tag, rows * width * 4)
    readRows(half.floats, 0, x, width, rows)
    this.#publish('all_reduce', tag, width, rows, 0)
    yield* this.#arrive('all_reduce', tag)
    this.#sumInto(x, width, 0, rows)
  }

  *reduceScatter(tag: CollectiveTag, x: Operand, out: Operand, width: number, counts: ArrayLike<number>): Step<void> {
    let total = 0
    let from = 0
    for (let m = 0; m < this.size; m++) {
      if (m === this.member) from = total
      total += counts[m]!
    }
    const half = this.#room(tag, total * width * 4)
    readRows(half.floats, 0, x, width, total)
    this.#publish('reduce_scatter', tag, width, total, 0)
    yield* this.#arrive('reduce_scatter', tag)
    this.#sumInto(out, width, from, counts[this.member]!)
  }

  *gatherColumns(tag: CollectiveTag, x: Operand, out: Operand, widths: ArrayLike<number>, rows: RowRange): Step<void> {
    const width = widths[this.member]!
    const half = this.#room(tag, rows.all * width * 4)
    readRows(half.floats, 0, x, width, rows.all)
    // Widths differ between members, so they are not published as one; the sum is the same for all.
    let total = 0
    for (let m = 0; m < this.size; m++) total += widths[m]!
    this.#publish('gather_columns', tag, total, rows.all, 0)
    yield* this.#arrive('gather_columns', tag)
    let column = 0
    for (let m = 0; m < this.size; m++) {
      const block = { ...out, offset: out.offset + column }
      writeRows(block, 0, this.#peer(m).floats, rows.from * widths[m]!, widths[m]!, rows.count)
      column += widths[m]!
    }
  }

  *broadcast(tag: CollectiveTag, x: Operand, width: number, rows: number, root: number): Step<void> {
    const half = this.#room(tag, rows * width * 4)
    if (this.member === root) readRows(half.floats, 0, x, width, rows)
    this.#publish('broadcast', tag, width, rows, root)
    yield* this.#arrive('broadcast', tag)
    if (this.member !== root) writeRows(x, 0, this.#peer(root).floats, 0, width, rows)
  }

  /** out[rows, width] = Σ over members, ascending, of rows `from`… of what they published. */
  #sumInto(out: Operand, width: number, from: number, rows: number): void {
    if (this.size === 1) {
      writeRows(out, 0, this.#peer(0).floats, from * width, width, rows)
      return
    }
    if (this.#table.length < rows * this.size) this.#table = new Int32Array(rows * this.size)
    const table = this.#table
    for (let r = 0, at = 0; r < rows; r++) for (let m = 0; m < this.size; m++) table[at++] = from + r
    const published = this.#published(width)[this.#sequence & 1]!
    this.#kernels.sum({ from: published, out: this.#rowsOf(out, width), n: rows, outRow: 0, table })
  }

  /** What the members publish, as rows of a width, by parity. */
  #published(width: number): readonly [Rows[], Rows[]] {
    let found = this.#publishedRows.get(width)
    if (!found) {
      const format = wireFormat('f32', width)
      const side = (parity: 0 | 1) =>
        this.#halves.map(half => operandRows({ span: half[parity].payload, offset: 0, stride: width }, format))
      found = [side(0), side(1)]
      this.#publishedRows.set(width, found)
    }
    return found
  }

  /** Operands of a program are bound once, so their views are made once. */
  #rowsOf(operand: Operand, width: number): Rows {
    const known = this.#operandRows.get(operand)
    if (known && known.format.hidden === width) return known
    const rows = operandRows(operand, wireFormat('f32', width))
    this.#operandRows.set(operand, rows)
    return rows
  }

  #peer(member: number): ExchangeHalf {
    return this.#halves[member]![this.#sequence & 1]!
  }

  /** The own half of the next collective, after checking that the payload fits. */
  #room(tag: CollectiveTag, bytes: number): ExchangeHalf {
    if (bytes > this.#payloadBytes) {
      const fields = { rank: this.ranks[this.member], label: tag.label, needed: bytes, available: this.#payloadBytes }
      throw new CommError('SY_COMM_TOO_LARGE', { ...fields, group: this.group })
    }
    return this.#halves[this.member]![(this.#sequence + 1) & 1]!
  }

  #publish(collective: Collective, tag: CollectiveTag, width: number, rows: number, root: number): void {
    this.#sequence = (this.#sequence + 1) | 0
    const h = this.#peer(this.member).header
    h[0] = this.#step
    h[1] = this.#sequence
    h[2] = COLLECTIVES.indexOf(collective)
    h[3] = tag.layer
    h[4] = tag.operation
    h[5] = width
    h[6] = rows
    h[7] = root
    const index = this.#epochs[this.member]!
    Atomics.store(this.#words, index, this.#sequence)
    if (this.size > 1) Atomics.notify(this.#words, index)
  }

  /** Waits for all members, then compares what they published with the own header (rows with `counts`, where given). */
  *#arrive(collective: Collective, tag: CollectiveTag, counts?: ArrayLike<number>): Step<void> {
    const wait = this.#wait
    wait.target = this.#sequence
    wait.label = tag.label
    for (let m = 0; m < this.size; m++) {
      if (m === this.member) continue
      wait.index = this.#epochs[m]!
      wait.peer = this.ranks[m]!
      while (!wait.ready()) yield wait
    }
    const own = this.#peer(this.member).header
    for (let m = 0; m < this.size; m++) {
      if (m === this.member) continue
      const theirs = this.#peer(m).header
      for (let f = 0; f < HEADER_FIELDS.length; f++) {
        const expected = f === 6 && counts ? counts[m]! : own[f]!
        if (theirs[f] !== expected) throw this.#disagreement(collective, tag, m, f, expected, theirs[f]!)
      }
    }
  }

  #disagreement(c: Collective, tag: CollectiveTag, m: number, f: number, expected: number, found: number): RankError {
    const name = (v: number) => (f === 2 ? (COLLECTIVES[v] ?? v) : v)
    const me = this.ranks[this.member]
    return new RankError('SY_RANK_DISAGREES', {
      collective: `${c} (${tag.label}) of group ${this.group}`,
      where: ` (step ${this.#step}${tag.layer < 0 ? '' : `, layer ${tag.layer}`}${tag.operation < 0 ? '' : `, operation ${tag.operation}`})`,
      step: this.#step,
      field: HEADER_FIELDS[f],
      values: `${name(expected)} as rank ${me} has it, ${name(found)} on rank ${this.ranks[m]}`,
      rank: this.ranks[m],
      layer: tag.layer,
      operation: tag.operation,
    })
  }
}

/** to[at…] = `rows` rows of x, made dense. */
function readRows(to: Float32Array, at: number, x: Operand, width: number, rows: number): void {
  const from = f32View(x.span)
  if (x.stride === width) {
    to.set(from.subarray(x.offset, x.offset + rows * width), at)
    return
  }
  for (let r = 0; r < rows; r++) {
    const start = x.offset + r * x.stride
    to.set(from.subarray(start, start + width), at + r * width)
  }
}

/** Rows `row`… of out = dense rows of `from` beginning at element `at`. */
function writeRows(out: Operand, row: number, from: Float32Array, at: number, width: number, rows: number): void {
  const to = f32View(out.span)
  const start = out.offset + row * out.stride
  if (out.stride === width) {
    to.set(from.subarray(at, at + rows * width), start)
    return
  }
  for (let r = 0; r < rows; r++) to.set(from.subarray(at + r * width, at + (r + 1) * width), start + r * out.stride)
}
