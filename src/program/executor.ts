// The sequential executor: runs a bound program's operations in order on the rows of one step.
// Nothing here assumes that an operation has finished when it returns.
import type { StatusWriter } from '../runtime/control.js'
import type { Step } from '../runtime/wait.js'
import type { BoundOperation } from './bind.js'
import type { RowValues } from './program.js'

export function* runSequential(
  operations: readonly BoundOperation[],
  values: RowValues,
  status: StatusWriter,
): Step<void> {
  for (const op of operations) {
    status.operation(op.layer, op.index)
    if (op.how === 'kernel') op.kernel(values.rows[op.rows])
    else if (op.how === 'local') op.run(values)
    else yield* op.run(values)
  }
}
