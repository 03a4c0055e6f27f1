// Writes a step's local batch into the program's input buffers. Host memory only; allocates nothing.
import { f32View, i32View, type MemorySpan } from '../device/memory.js'
import type { ProgramLimits } from '../models/index.js'
import { type LocalBatch, type RequestState, rowOfDraw } from '../scheduler/index.js'

export class BatchWriter {
  readonly #ids: Int32Array
  readonly #requestKeys: Int32Array
  readonly #positions: Int32Array
  readonly #rowSequence: Int32Array
  readonly #slots: Int32Array
  readonly #pageTable: Int32Array
  readonly #logitIndex: Int32Array
  readonly #params: Float32Array
  readonly #paramBits: Int32Array
  readonly #pageSize: number
  readonly #pagesPerSequence: number

  constructor(buffers: Readonly<Record<string, MemorySpan>>, limits: ProgramLimits) {
    const ints = (name: string) => i32View(buffers[name]!)
    this.#ids = ints('ids')
    this.#requestKeys = ints('request_keys')
    this.#positions = ints('positions')
    this.#rowSequence = ints('row_sequence')
    this.#slots = ints('slots')
    this.#pageTable = ints('page_table')
    this.#logitIndex = ints('logit_index')
    this.#params = f32View(buffers['sample_params']!)
    this.#paramBits = ints('sample_params')
    this.#pageSize = limits.pageSize
    this.#pagesPerSequence = Math.ceil(limits.contextLength / limits.pageSize)
  }

  /**
   * @param drawn what the step before drew, by logit row: the ids of tokens that the scheduler does not know yet; null leaves
   * the number of the row (`drawnIn`) for the device to look up
   */
  write(batch: LocalBatch, drawn: Int32Array | null): void {
    let row = 0
    let logitRow = 0
    batch.slices.forEach((slice, sequence) => {
      const { state, from, count } = slice
      this.#pageTable.set(state.pages, sequence * this.#pagesPerSequence)
      for (let i = 0; i < count; i++, row++) {
        const position = from + i
        const token = state.tokens[position]!
        this.#ids[row] = token < 0 && drawn ? drawn[rowOfDraw(token)]! : token
        // Nobody reads the key of a token that is not known: with replicated experts, steps do not overlap.
        this.#requestKeys[row] = token < 0 ? 0 : state.keyAt(position)
        this.#positions[row] = position
        this.#rowSequence[row] = sequence
        const page = state.pages[Math.floor(position / this.#pageSize)]!
        this.#slots[row] = page * this.#pageSize + (position % this.#pageSize)
      }
      const logitRows = slice.wantLogits ? count : slice.sample ? 1 : 0
      for (let i = logitRows; i > 0; i--, logitRow++) {
        this.#logitIndex[logitRow] = row - i
        this.#writeParams(logitRow, state, from + count - i + 1)
      }
    })
  }

  /** @param position of the token that is drawn: the counter of its noise */
  #writeParams(row: number, { request }: RequestState, position: number): void {
    const at = row * 8
    this.#params[at] = request.temperature
    this.#params[at + 1] = request.topP
    this.#params[at + 2] = request.minP
    this.#params[at + 3] = request.topK
    this.#paramBits[at + 4] = request.seedLow | 0
    this.#paramBits[at + 5] = request.seedHigh | 0
    this.#paramBits[at + 6] = position
  }
}
