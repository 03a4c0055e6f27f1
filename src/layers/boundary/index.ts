// Layouts of rows over ranks, and the moves between stages.
export { Boundary, type StageOutput } from './boundary.js'
export { BoundaryError } from './errors.js'
export type { Layout, SumGroup, TokenAxis } from './layout.js'
