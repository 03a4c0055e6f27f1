// The fused end of a layer boundary: members publish their partial rows, and each takes the sum of its own rows straight from
// there into its residual and the norm, a row at a time while it is in the cache.
import type { CollectiveTag, Communicator, RowRange } from '../comm/index.js'
import { Unreachable } from '../config/errors.js'
import type { Operand, Ops, ParameterVector } from '../device/ops.js'
import type { Step } from '../runtime/wait.js'
import type { RowSymbol } from './operation.js'
import type { RowValues } from './program.js'

export interface ReduceNormOperands {
  readonly out: Operand
  readonly residual: Operand
  readonly x: Operand
  readonly weight: ParameterVector
  readonly width: number
  readonly eps: number
}

/**
 * @param range all rows that members publish, and the own ones among them
 * @param symbol rows that are summed and normalised: those that have tokens
 */
export function bindReduceNorm(
  ops: Ops,
  group: Communicator,
  tag: CollectiveTag,
  { x, ...fixed }: ReduceNormOperands,
  range: (values: RowValues) => RowRange,
  symbol: RowSymbol,
): { how: 'collective'; run: (values: RowValues) => Step<void> } {
  if (!ops.sumAddRmsNorm) throw new Unreachable(`${ops.name} cannot read what other ranks published`)
  const { width } = fixed
  const [even, odd] = group.windows(width)
  const kernels = [
    ops.sumAddRmsNorm({ ...fixed, xs: even.members, first: even.first }),
    ops.sumAddRmsNorm({ ...fixed, xs: odd.members, first: odd.first }),
  ] as const
  return {
    how: 'collective',
    *run(values) {
      const parity = yield* group.reduce(tag, x, width, range(values))
      kernels[parity](values.rows[symbol])
    },
  }
}
