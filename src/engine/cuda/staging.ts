// How a step's inputs reach a GPU: the batch is written into a pinned copy of the input block, and a list says which pieces of
// it the step uses. One kernel brings those over. Two copies, because a step is formed while the one before still runs.

import { i32View, type MemoryLender, type MemorySpan } from '../../device/memory.js'
import type { ProgramLimits } from '../../models/index.js'
import { type BufferSpec, type Program, readsOf } from '../../program/index.js'
import type { LocalBatch } from '../../scheduler/index.js'
import { BatchWriter } from '../batch-writer.js'
import { type InputBlock, lendInputBlock } from '../rank-memory.js'
import { stampBytes } from './stamps.js'

/** Rows of a step that are no padding: i32 [1], read by kernels that must leave padding out. */
export const VALID_ROWS = 'valid_rows'

/** Stands for the id of a padding row; kernels/cuda/inputs.cu. */
export const PADDING_ID = -0x80000000

/** Longer pieces are cut, so that several blocks copy them. */
const PIECE_WORDS = 4096

/** Fault words behind the results. */
const FAULT_WORDS = 2

/** Pinned memory of one step on its way. */
export interface StepSlot {
  readonly mirror: InputBlock
  /** [first word, words] of each piece. */
  readonly pieces: MemorySpan
  /** [ids | log-probabilities | fault words]. */
  readonly results: MemorySpan
  /** The GPU's clock after each operation, of traced steps. */
  readonly stamps: MemorySpan
}

/** Inputs that some operation reads; the rest need not travel. */
const inputsRead = (program: Program): ReadonlySet<string> =>
  new Set(program.operations.flatMap(op => readsOf(op).map(ref => ref.buffer)))

export const lendDeviceInputs = (program: Program, lender: MemoryLender): InputBlock =>
  lendInputBlock(program, lender, { [VALID_ROWS]: 4 })

export function lendStepSlot(program: Program, host: MemoryLender): StepSlot {
  const mirror = lendInputBlock(program, host, { [VALID_ROWS]: 4 })
  const inputs = program.buffers.filter(b => b.kind === 'input')
  const rows = program.bounds.logitRows
  const pieces = mostPieces(program, inputs)
  return {
    mirror,
    pieces: host.lend(pieces * 8, 'pieces of the inputs'),
    results: host.lend((2 * rows + FAULT_WORDS) * 4, 'results of a step'),
    stamps: host.lend(stampBytes(program.operations.length), 'time stamps of a step'),
  }
}

function mostPieces({ bounds }: Program, inputs: readonly BufferSpec[]): number {
  const cut = (words: number) => Math.ceil(words / PIECE_WORDS)
  return inputs.reduce((sum, { name, rows, columns }) => {
    const count = typeof rows === 'number' ? rows : bounds[rows]
    return sum + (name === 'page_table' ? count * cut(columns) : cut(count * columns))
  }, 1)
}

/** Writes batches into one slot. */
export class StagedInputs {
  readonly #writer: BatchWriter
  readonly #words: Int32Array
  readonly #pieces: Int32Array
  readonly #read: ReadonlySet<string>
  readonly #at: Readonly<Record<string, number>>
  readonly #pagesPerSequence: number
  #count = 0

  constructor(slot: StepSlot, program: Program, limits: ProgramLimits) {
    this.#writer = new BatchWriter(slot.mirror.buffers, limits)
    this.#words = i32View(slot.mirror.span)
    this.#pieces = i32View(slot.pieces)
    this.#read = inputsRead(program)
    this.#at = Object.fromEntries(Object.entries(slot.mirror.offsets).map(([name, bytes]) => [name, bytes / 4]))
    this.#pagesPerSequence = Math.ceil(limits.contextLength / limits.pageSize)
  }

  /** Words of the block where ids begin. */
  get idsFrom(): number {
    return this.#at['ids']!
  }

  /**
   * @param rows rows that the program runs on, at least those of the batch; the others become padding
   * @returns pieces to bring over
   */
  write(batch: LocalBatch, rows: number): number {
    this.#writer.write(batch, null)
    this.#count = 0
    const { tokens, slices } = batch
    // Only steps of one row a sequence are padded, where logit rows are rows.
    const logitRows = rows > tokens ? rows : batch.logitRows
    this.#pad(tokens, rows)
    this.#words[this.#at[VALID_ROWS]!] = tokens
    this.#piece(VALID_ROWS, 0, 1)
    for (const name of ['ids', 'request_keys', 'positions', 'row_sequence', 'slots']) this.#piece(name, 0, rows)
    this.#piece('logit_index', 0, logitRows)
    this.#piece('sample_params', 0, 8 * logitRows)
    slices.forEach(({ state }, sequence) => {
      this.#piece('page_table', sequence * this.#pagesPerSequence, state.pages.length)
    })
    return this.#count
  }

  /** For drills: the first sequence of the batch just written has its first page there. */
  spoilPage(page: number): void {
    this.#words[this.#at['page_table']!] = page
  }

  /** Padding rows: no token, nothing stored, the context of one position, drawn greedily. */
  #pad(from: number, to: number): void {
    const fill = (name: string, value: number) => {
      const at = this.#at[name]!
      this.#words.fill(value, at + from, at + to)
    }
    if (from === to) return
    fill('ids', PADDING_ID)
    fill('request_keys', 0)
    fill('positions', 0)
    fill('row_sequence', 0)
    fill('slots', -1)
    const [index, params] = [this.#at['logit_index']!, this.#at['sample_params']!]
    for (let row = from; row < to; row++) this.#words[index + row] = row
    this.#words.fill(0, params + 8 * from, params + 8 * to)
  }

  #piece(name: string, from: number, words: number): void {
    if (name !== VALID_ROWS && !this.#read.has(name)) return
    const at = this.#at[name]! + from
    for (let done = 0; done < words; done += PIECE_WORDS) {
      this.#pieces[2 * this.#count] = at + done
      this.#pieces[2 * this.#count + 1] = Math.min(PIECE_WORDS, words - done)
      this.#count++
    }
  }
}
