// What a program needs of an all-to-all between ranks: four stages around the experts. Implementations are in moe/dispatch
// (over comm's ExpertBuffer); a program names the mode, the rank binds the implementation.
import type { CollectiveTag } from '../comm/index.js'
import type { Operand } from '../device/ops.js'
import type { Step } from '../runtime/wait.js'

export type DispatchMode = 'normal' | 'low_latency'

/** What this rank's experts work on: rows from all ranks. Valid until the results have been sent. */
export interface ReceivedTokens {
  /** Rows to look at; those without an expert here have ids -1 throughout. */
  readonly rows: number
  /** f32 [rows, hidden] */
  readonly x: Operand
  /** i32 [rows, topK]: index of the expert among this rank's physical ones, -1 = not here. */
  readonly ids: Operand
  /** f32 [rows, topK] */
  readonly weights: Operand
  /** Where partial rows had best be written, if anywhere: saves a copy. */
  readonly partials: Operand | null
}

/** One dispatch and its combine, stage after stage: each stage may be called only after the one before it. */
export interface ExpertDispatcher {
  /** Ids are physical experts. @param tokens rows of this rank, and of every rank as the plan has it */
  send(
    tag: CollectiveTag,
    tokens: { readonly own: number; readonly ofRank: readonly number[] },
    x: Operand,
    ids: Operand,
    weights: Operand,
  ): Step<void>
  receive(): Step<ReceivedTokens>
  /** @param partials f32 [rows, hidden]: for each received row the weighted sum over the experts here */
  sendResults(tag: CollectiveTag, partials: Operand, out: Operand): Step<void>
  /** out f32 [tokens, hidden]: the sum over ranks, in ascending order. */
  receiveResults(): Step<void>
}
