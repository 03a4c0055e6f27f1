// Layouts of rows over ranks, and the moves between stages.
export { Boundary } from './boundary.js'
export { BoundaryError } from './errors.js'
export type { Layout, SumGroup, TokenAxis } from './layout.js'
export {
  type DpPaddingMode,
  departure,
  type GatherKind,
  gatherKind,
  type MoveContext,
  moveRows,
  type Placed,
  type PlainReduction,
  plainReduction,
  rowsIn,
} from './moves.js'
