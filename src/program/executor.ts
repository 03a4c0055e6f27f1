// The sequential executor: runs a bound program's operations in order on the rows of one step.
// Nothing here assumes that an operation has finished when it returns.
import type { StatusWriter } from '../runtime/control.js'
import type { Step } from '../runtime/wait.js'
import type { BoundOperation } from './bind.js'
import type { RowValues } from './program.js'

/** Collectives will yield here; kernels of one rank never wait. */
// biome-ignore lint/correctness/useYield: the contract of all executors is a step that may wait
export function* runSequential(
  operations: readonly BoundOperation[],
  rows: RowValues,
  status: StatusWriter,
): Step<void> {
  for (const op of operations) {
    status.operation(op.layer, op.index)
    op.kernel(rows[op.rows])
  }
}
