// The sequential executor: runs a bound program's operations in order on the rows of one step.
// Nothing here assumes that an operation has finished when it returns.
import type { StatusWriter } from '../runtime/control.js'
import type { Step } from '../runtime/wait.js'
import { type OperationTrace, RECEIVED_ROWS } from '../trace/index.js'
import type { BoundOperation } from './bind.js'
import type { RowValues } from './program.js'

/** @param trace hears when operations begin and end, or null */
export function* runSequential(
  operations: readonly BoundOperation[],
  values: RowValues,
  status: StatusWriter,
  trace: OperationTrace | null = null,
): Step<void> {
  for (const op of operations) {
    status.operation(op.layer, op.index)
    trace?.begin(op.index)
    if (op.how === 'kernel') op.kernel(values.rows[op.rows])
    else if (op.how === 'local') op.run(values)
    else yield* op.run(values)
    trace?.end(op.rows === 'received' ? RECEIVED_ROWS : values.rows[op.rows])
  }
}
