// Tracing: what ranks did, step by step. Recorded into memory lent by the node, read afterwards, exported for Perfetto.
export { type Arrival, arrivalsOf } from './arrivals.js'
export { type ChromeEvent, chromeEvents, chromeJson, LANE } from './chrome.js'
export { type RankEvents, readTrace, type StepEvent } from './read.js'
export { type OperationTrace, RECEIVED_ROWS, TraceRecorder, type TrafficObserver, traceWaits } from './recorder.js'
export {
  isRecording,
  lendTraceRing,
  openTraceRing,
  type RowName,
  recordsWritten,
  switchRecording,
  type TraceRing,
} from './ring.js'
export { type KindShare, summarize, type TraceSummary, type WaitSum } from './summary.js'
export { operationOf, type Trace, type TracedOperation, type TracedProgram, type TracedRank } from './trace.js'
