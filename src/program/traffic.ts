// Bytes that an operation moves between ranks, by the row counts of a step: for traces and models of cost.
// Counts what leaves for and comes from other ranks, not what a rank reads of its own. Not for memory: that is payloads.ts.
import type { Operation, ProgramGroup, RowSymbol } from './operation.js'
import { contribution, ROWS_OF, SUM_OF } from './payloads.js'

export interface Traffic {
  readonly group: ProgramGroup
  /** Bytes this rank puts where the others read them, once however many read. */
  readonly sent: number
  /** Bytes it reads of the others'. */
  readonly received: number
}

/**
 * @param size ranks of the operation's group
 * @returns null for operations that stay on their rank, and for those whose traffic depends on where tokens go
 */
export function trafficOf(
  op: Operation,
  rows: Readonly<Record<RowSymbol, number>>,
  size: (group: ProgramGroup) => number,
): Traffic | null {
  const brings = contribution(op)
  if (!brings) return null
  const { group, width } = brings
  const others = size(group) - 1
  const sent = others === 0 ? 0 : rows[brings.rows] * width * 4
  switch (op.kind) {
    case 'all_gather': {
      const { counts } = op.args
      return { group, sent, received: (rows[SUM_OF[counts]] - rows[ROWS_OF[counts]]) * width * 4 }
    }
    case 'reduce_scatter':
      return { group, sent, received: others * rows[ROWS_OF[op.args.counts]] * width * 4 }
    case 'reduce_norm':
      return { group, sent, received: others * rows[op.rows] * width * 4 }
    case 'gather_columns': {
      const columns = op.args.widths.reduce((a, b) => a + b, 0) - width
      const own = op.args.counts ? ROWS_OF[op.args.counts] : op.rows
      return { group, sent, received: rows[own] * columns * 4 }
    }
    default:
      return { group, sent, received: others * sent }
  }
}
