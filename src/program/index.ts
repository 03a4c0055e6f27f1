// The forward pass as data, and what carries it out.
export { type ArenaPlan, bufferBytes, planArena } from './arena.js'
export { type BoundOperation, bindProgram } from './bind.js'
export { bindCudaProgram, type CudaBinding } from './bind-cuda.js'
export type { IdTables } from './bind-ids.js'
export { PeerExchange } from './bind-peers.js'
export type { Binding } from './binding.js'
export { columns, ProgramBuilder } from './builder.js'
export { runSequential } from './executor.js'
export type { DispatchMode, ExpertDispatcher, ReceivedTokens } from './expert-dispatch.js'
export type {
  BatchRefs,
  CountsSymbol,
  Operation,
  OperationKind,
  ProgramGroup,
  Ref,
  RowSymbol,
} from './operation.js'
export { readsOf } from './operation.js'
export { collectivePayloads } from './payloads.js'
export { describeOperations, type PrintedOperation, printProgram } from './print.js'
export { type BufferSpec, boundedRows, type Program, type RopeTableSpec, type RowValues } from './program.js'
export { type Traffic, trafficOf } from './traffic.js'
