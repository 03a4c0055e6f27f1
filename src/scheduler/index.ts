// Per DP rank: queues, batches, and the agreement of ranks on a step.
export { type BatchSlice, FORWARD_MODE, type ForwardMode, IDLE_BATCH, type LocalBatch, makeBatch } from './batch.js'
export { DpRouter, type LoadBalanceMethod } from './dp-router.js'
export { type DelayOutcome, PrefillDelayer } from './prefill-delayer.js'
export { type EndReason, type LogitEdits, type RankRequest, RequestState, rowOfDraw } from './request-state.js'
export { type RequestProgress, Scheduler, type SchedulerCounters, type SchedulerLimits } from './scheduler.js'
export {
  castVote,
  chooseDispatch,
  choosePadding,
  type DispatchRule,
  type DpPaddingMode,
  fallbackVote,
  hashWords,
  type PlanRules,
  planStep,
  type StepPlan,
  VOTE_FIELDS,
  VOTE_WORDS,
  type VoteContext,
} from './step-plan.js'
export { pieceOf, stepRows } from './step-rows.js'
