// Runs one step of a rank on its device. The rank's loop decides what a step is and when its results count; a runner brings the
// batch to the device, runs the program, and says when what it drew may be read.

import type { Communicator } from '../comm/index.js'
import { type DeviceEvent, DONE } from '../device/event.js'
import { type BoundOperation, type ProgramGroup, type RowValues, runSequential } from '../program/index.js'
import type { StatusWriter } from '../runtime/control.js'
import type { Step } from '../runtime/wait.js'
import type { LocalBatch, StepPlan } from '../scheduler/index.js'
import type { TraceRecorder } from '../trace/index.js'
import type { BatchWriter } from './batch-writer.js'
import { LogitEditor } from './logit-edits.js'
import type { DeviceState } from './request.js'

/** What a step drew, by logit row. */
export interface RankOutputs {
  /** [logit rows, vocab]; what is there when nobody wanted them is not said. */
  readonly logits: Float32Array
  readonly sampled: Int32Array
  readonly logprobs: Float32Array
  readonly vocab: number
}

/** What a rank does in a step. */
export interface StepWork {
  readonly batch: LocalBatch
  readonly plan: StepPlan
  /** Which of the rank's programs. */
  readonly variant: number
  readonly values: RowValues
}

/** A step on its way. */
export interface StepFlight {
  readonly batch: LocalBatch
  /** Nothing of `outputs` may be read before. */
  readonly finished: DeviceEvent
  readonly outputs: RankOutputs
}

export interface StepRunner {
  /** Whether a captured graph could run this batch; goes into the vote. */
  canReplay(batch: LocalBatch): boolean
  /** Returns when the next step may be queued. At most two steps are on their way at a time. */
  run(work: StepWork): Step<StepFlight>
  /** Counts for reports, where the device has some. */
  readonly state?: DeviceState
  /** What its work is queued on, for who asks the device whether any is left. */
  readonly queue?: number
  /** Lets go of the device. Nothing may be on its way. */
  close(): void
}

/** The host itself must see this batch's results before the next step is formed: rows of logits, or tokens that edits count. */
export const needsResults = (batch: LocalBatch): boolean =>
  batch.slices.some(({ state: { request }, wantLogits }) => {
    return wantLogits || request.topLogprobs !== undefined || request.edits !== undefined
  })

const PUBLISH_TAG = { operation: -2, layer: -1, label: 'publishing the local batch' }

export interface HostRunnerParts {
  readonly groups: Readonly<Record<ProgramGroup, Communicator>>
  readonly status: StatusWriter
  readonly trace: TraceRecorder | null
  readonly leads: boolean
  /** By variant: the forward pass, and the draw that ends it. Between the two the leader edits rows of logits. */
  readonly operations: readonly {
    readonly forward: readonly BoundOperation[]
    readonly draw: readonly BoundOperation[]
  }[]
  readonly inputs: BatchWriter
  readonly outputs: RankOutputs
  /** Steps overlap: what one drew must outlive the next. */
  readonly overlap: boolean
}

/** The CPU: every operation has finished when it returns, so a step has finished when it has run. */
export class HostRunner implements StepRunner {
  readonly #parts: HostRunnerParts
  readonly #editor = new LogitEditor()

  constructor(parts: HostRunnerParts) {
    this.#parts = parts
  }

  canReplay(): boolean {
    return false
  }

  close(): void {}

  *run({ batch, variant, values }: StepWork): Step<StepFlight> {
    const { groups, status, trace, leads, operations, inputs, outputs, overlap } = this.#parts
    // The leader writes the batch where its attention-TP group reads it; a barrier orders the two.
    if (leads) inputs.write(batch, outputs.sampled)
    if (groups.attnTp.size > 1) yield* groups.attnTp.barrier(PUBLISH_TAG)
    status.phase('forward')
    status.program(variant)
    trace?.rows(values.rows)
    const { forward, draw } = operations[variant]!
    yield* runSequential(forward, values, status, trace)
    // What the leader draws counts, so only its logits are edited.
    const { logits, vocab } = outputs
    if (leads) this.#editor.apply(batch, logits, vocab)
    yield* runSequential(draw, values, status, trace)
    this.#editor.restore(logits)
    if (!overlap) return { batch, finished: DONE, outputs }
    const kept = { sampled: outputs.sampled.slice(), logprobs: outputs.logprobs.slice() }
    return { batch, finished: DONE, outputs: { ...outputs, ...kept } }
  }
}
