// How many bytes a member brings to the largest collective of each group: sizes the memory that groups exchange through.
import type { CountsSymbol, Operation, ProgramGroup, RowSymbol } from './operation.js'
import type { Program } from './program.js'

/** Rows that a member brings. */
export const ROWS_OF: Record<CountsSymbol, RowSymbol> = {
  dp: 'padded',
  attnTp: 'slice',
  tp: 'slice',
  logits: 'logitRows',
}
/** All rows that a list of counts adds up to. */
export const SUM_OF: Record<CountsSymbol, RowSymbol> = {
  dp: 'gathered',
  attnTp: 'padded',
  tp: 'gathered',
  logits: 'gatheredLogits',
}

/** What a member puts where the others read it, for operations whose payload the row counts decide. */
export function contribution(op: Operation): { group: ProgramGroup; rows: RowSymbol; width: number } | null {
  switch (op.kind) {
    case 'all_gather':
      return { group: op.args.group, rows: ROWS_OF[op.args.counts], width: op.args.x.width }
    case 'all_reduce':
      return { group: op.args.group, rows: op.rows, width: op.args.x.width }
    case 'reduce_scatter':
      return { group: op.args.group, rows: SUM_OF[op.args.counts], width: op.args.x.width }
    case 'reduce_norm':
      return { group: op.args.group, rows: op.args.counts ? SUM_OF[op.args.counts] : 'padded', width: op.args.x.width }
    case 'gather_columns':
      return { group: op.args.group, rows: op.args.counts ? SUM_OF[op.args.counts] : op.rows, width: op.args.x.width }
    default:
      return null
  }
}

export function collectivePayloads(programs: readonly Program[]): Record<ProgramGroup, number> {
  const bytes: Record<ProgramGroup, number> = { tp: 0, attnDp: 0, attnTp: 0 }
  for (const program of programs) {
    for (const op of program.operations) {
      const c = contribution(op)
      if (c) bytes[c.group] = Math.max(bytes[c.group], program.bounds[c.rows] * c.width * 4)
    }
  }
  return bytes
}
