// Moves of rows inside a rank whose place depends on the plan: into the buffer of all ranks, and out of it.
// Host memory only; another device will have kernels for them.
import { f32View } from '../device/memory.js'
import type { Operand } from '../device/ops.js'
import type { Operation, Ref } from './operation.js'
import type { RowValues } from './program.js'

type RowMove = Extract<Operation, { kind: 'place_rows' | 'cut_rows' }>

export function bindRowMove(op: RowMove, at: (ref: Ref) => Operand): (values: RowValues) => void {
  const [out, x, width] = [at(op.args.out), at(op.args.x), op.args.x.width]
  if (op.kind === 'cut_rows') {
    const { counts } = op.args
    return values => {
      const member = values.member[counts]
      const from = sumBefore(values.counts[counts], member)
      copyRows(out, 0, x, from, width, values.counts[counts][member]!)
    }
  }
  const { contribute } = op.args
  const to = f32View(out.span)
  return values => {
    for (let r = 0; r < values.rows.gathered; r++) {
      const start = out.offset + r * out.stride
      to.fill(0, start, start + width)
    }
    if (contribute) copyRows(out, sumBefore(values.counts.dp, values.member.dp), x, 0, width, values.rows.padded)
  }
}

function sumBefore(counts: readonly number[], member: number): number {
  let sum = 0
  for (let m = 0; m < member; m++) sum += counts[m]!
  return sum
}

function copyRows(out: Operand, outRow: number, x: Operand, xRow: number, width: number, rows: number): void {
  const [to, from] = [f32View(out.span), f32View(x.span)]
  for (let r = 0; r < rows; r++) {
    const start = x.offset + (xRow + r) * x.stride
    to.set(from.subarray(start, start + width), out.offset + (outRow + r) * out.stride)
  }
}
