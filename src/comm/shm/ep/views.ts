// A rank's views of an expert buffer's memory: its own parts and those of its peers, as rows that kernels can reach and as
// the operands that results show. Made once; a view is a window, it owns nothing.
import { f32View, i32View, type MemorySpan, subspan } from '../../../device/memory.js'
import type { Operand } from '../../../device/ops.js'
import {
  channelsOf,
  type EpPart,
  type ExpertBufferConfig,
  maxReceived,
  totalExperts,
  wireOf,
} from '../../expert-buffer-config.js'
import type { WireFormat } from '../../wire/format.js'
import { wireFormat } from '../../wire/format.js'
import { operandRows, type Rows, wireRows } from '../../wire/kernels.js'
import { type ExpertBufferMemory, piece } from './memory.js'
import { COUNTS_OFFSET } from './signals.js'

/** Ids, weights and source tokens of the rows of a result, one after another in one piece. */
export interface RowMeta {
  readonly ids: Int32Array
  readonly weights: Float32Array
  readonly sources: Int32Array
  readonly idsOperand: Operand
  readonly weightsOperand: Operand
  readonly sourcesOperand: Operand
}

/** What a member says of its tokens in one result: tokens to each (member, channel), then (token, expert) pairs. */
export interface Counts {
  readonly perLane: Int32Array
  readonly perExpert: Int32Array
}

export class EpViews {
  readonly config: ExpertBufferConfig
  readonly size: number
  readonly f32: WireFormat
  readonly #memory: ExpertBufferMemory

  constructor(memory: ExpertBufferMemory) {
    this.#memory = memory
    this.config = memory.config
    this.size = memory.members.length
    this.f32 = wireFormat('f32', memory.config.hidden)
  }

  span(member: number, part: EpPart, parity = 0): MemorySpan | undefined {
    return piece(this.#memory.members[member]!, part, parity)
  }

  /** f32 rows with the stride of the wire's rows. */
  operand(span: MemorySpan): Operand {
    return { span, offset: 0, stride: this.f32.rowBytes / 4 }
  }

  rowsOf(operand: Operand): Rows {
    return operandRows(operand, this.f32)
  }

  /** Wire rows of every member's part, for one result. */
  wireParts(part: EpPart, format: WireFormat, capacity: number, parity: number): Rows[] {
    return Array.from({ length: this.size }, (_, m) =>
      wireRows({ format, span: this.span(m, part, parity)! }, capacity),
    )
  }

  meta(member: number, part: 'rowMeta' | 'slotMeta', rows: number, parity: number): RowMeta {
    const span = this.span(member, part, parity)!
    const { topK } = this.config
    const words = rows * topK
    const part32 = (from: number, count: number) => subspan(span, from * 4, count * 4)
    const ids = part32(0, words)
    const weights = part32(words, words)
    const sources = part32(2 * words, rows)
    return {
      ids: i32View(ids),
      weights: f32View(weights),
      sources: i32View(sources),
      idsOperand: { span, offset: 0, stride: topK },
      weightsOperand: { span, offset: words, stride: topK },
      sourcesOperand: { span, offset: 2 * words, stride: 1 },
    }
  }

  /** @param result parity, plus `results` for low-latency */
  counts(member: number, result: number): Counts {
    const lanes = this.size * channelsOf(this.config)
    const experts = totalExperts(this.config)
    const bytes = Math.ceil(((lanes + experts) * 4) / 64) * 64
    const span = subspan(this.span(member, 'signals')!, COUNTS_OFFSET + result * bytes, bytes)
    const words = i32View(span)
    return { perLane: words.subarray(0, lanes), perExpert: words.subarray(lanes, lanes + experts) }
  }

  get received(): number {
    return this.config.normal ? maxReceived(this.config, this.config.normal) : 0
  }

  wire(dtype: Parameters<typeof wireOf>[1]): WireFormat {
    return wireOf(this.config, dtype)
  }
}
