// Runs the steps of a rank on a GPU. A step is queued and left: inputs brought over by one kernel, the program's kernels or
// their captured graph, results into pinned memory, an event. Nothing waits but who reads the results, and steps whose rows
// of logits the host must see before the draw.
import type { CudaKernels } from '../../device/cuda/kernels.js'
import { checkFaults, faultAddress } from '../../device/cuda/ops/faults.js'
import type { CudaEvent, LaunchArguments } from '../../device/cuda/types.js'
import type { DeviceEvent } from '../../device/event.js'
import { f32View, i32View } from '../../device/memory.js'
import type { ProgramLimits } from '../../models/index.js'
import { type BoundOperation, type Program, type RowValues, runSequential } from '../../program/index.js'
import type { StatusWriter } from '../../runtime/control.js'
import type { Step } from '../../runtime/wait.js'
import type { LocalBatch } from '../../scheduler/index.js'
import type { TraceRecorder } from '../../trace/index.js'
import { graphBatchFor } from '../graph-batches.js'
import type { CudaRankDevice, RankLaunch } from '../launch.js'
import { LogitEditor } from '../logit-edits.js'
import { needsResults, type RankOutputs, type StepFlight, type StepRunner, type StepWork } from '../step-runner.js'
import { DecodeGraphs } from './graphs.js'
import { StagedInputs } from './staging.js'

const STAGE_THREADS = 256
const PUBLISH_THREADS = 256

export interface CudaRunnerParts {
  readonly launch: RankLaunch
  readonly device: CudaRankDevice
  readonly kernels: CudaKernels
  /** Of the rank's only program; the draw is the last. */
  readonly operations: readonly BoundOperation[]
  readonly program: Program
  readonly limits: ProgramLimits
  readonly status: StatusWriter
  readonly trace: TraceRecorder | null
  /** Lets go of the kernels and their stream. */
  release(): void
}

/** What one step on its way uses, taken in turns. */
interface Slot {
  readonly inputs: StagedInputs
  readonly stage: LaunchArguments
  readonly publish: LaunchArguments
  readonly finished: CudaEvent
  readonly outputs: RankOutputs
  readonly faults: Int32Array
}

export class CudaRunner implements StepRunner {
  readonly #parts: CudaRunnerParts
  readonly #slots: readonly Slot[]
  readonly #graphs: DecodeGraphs
  readonly #editor = new LogitEditor()
  readonly #forward: readonly BoundOperation[]
  readonly #draw: readonly BoundOperation[]
  readonly #logits: {
    readonly device: number
    readonly host: number
    readonly values: Float32Array
    readonly vocab: number
  }
  #turn = 0

  constructor(parts: CudaRunnerParts) {
    this.#parts = parts
    const { device, kernels, launch, operations, program } = parts
    const draw = operations.findLastIndex(op => op.kind === 'sample')
    this.#forward = operations.slice(0, draw)
    this.#draw = operations.slice(draw)
    this.#graphs = new DecodeGraphs(kernels.stream)
    this.#logits = {
      device: kernels.addressOf(launch.buffers[0]!['logits']!),
      host: kernels.hostAddressOf(device.logits),
      values: f32View(device.logits),
      vocab: program.buffers.find(b => b.name === 'logits')!.columns,
    }
    this.#slots = device.slots.map((_, i) => this.#makeSlot(i))
  }

  #makeSlot(index: number): Slot {
    const { launch, device, kernels, program, limits } = this.#parts
    const { mirror, pieces, results } = device.slots[index]!
    const buffers = launch.buffers[0]!
    const inputs = new StagedInputs(device.slots[index]!, program, limits)
    const { idsFrom } = inputs
    const sampled = kernels.addressOf(buffers['sampled']!)
    const stage = kernels
      .kernel('inputs.cu', 'stage_inputs')
      .bind(
        ['u64', 'u64', 'u64', 'u64', 'i32', 'i32'],
        [
          kernels.addressOf(device.inputs.span),
          kernels.addressOf(mirror.span),
          kernels.addressOf(pieces),
          sampled,
          idsFrom,
          idsFrom + program.bounds.tokens,
        ],
      )
    const capacity = program.bounds.logitRows
    const publish = kernels
      .kernel('inputs.cu', 'publish_results')
      .bind(
        ['u64', 'u64', 'u64', 'u64', 'i32', 'i32'],
        [
          kernels.addressOf(results),
          sampled,
          kernels.addressOf(buffers['logprob']!),
          faultAddress(kernels),
          0,
          capacity,
        ],
      )
    const words = i32View(results)
    const { values, vocab } = this.#logits
    return {
      inputs,
      stage,
      publish,
      finished: kernels.stream.record(),
      outputs: {
        logits: values,
        sampled: words.subarray(0, capacity),
        logprobs: f32View(results).subarray(capacity, 2 * capacity),
        vocab,
      },
      faults: words.subarray(2 * capacity, 2 * capacity + 2),
    }
  }

  canReplay(batch: LocalBatch): boolean {
    const { graphBatches } = this.#parts.device
    if (batch.tokens === 0) return graphBatches.length > 0
    const plain = batch.mode === 'decode' && batch.logitRows === batch.tokens && !needsResults(batch)
    return plain && graphBatchFor(batch.tokens, graphBatches) !== null
  }

  *run({ batch, plan, variant, values }: StepWork): Step<StepFlight> {
    const { status, trace, kernels, device } = this.#parts
    const slot = this.#slots[this.#turn]!
    this.#turn = (this.#turn + 1) % this.#slots.length
    status.phase('forward')
    status.program(variant)
    trace?.rows(values.rows)
    const size = plan.decodeGraph ? graphBatchFor(batch.tokens, device.graphBatches) : null
    const pieces = slot.inputs.write(batch, size ?? batch.tokens)
    slot.stage.launch([pieces, 1, 1], STAGE_THREADS)
    if (size !== null && device.capture) this.#graphs.run(size, () => this.#launchAll(size))
    else if (size !== null) this.#launchAll(size)
    else yield* this.#runOneByOne(batch, values)
    slot.publish.set(4, batch.logitRows)
    slot.publish.launch([1, 1, 1], PUBLISH_THREADS)
    slot.finished.record(kernels.stream)
    return { batch, finished: checked(slot), outputs: slot.outputs }
  }

  /** Every row of a decode step is drawn: all row counts are the batch's. */
  #launchAll(rows: number): void {
    for (const op of this.#forward) kernelOf(op)(rows)
    for (const op of this.#draw) kernelOf(op)(rows)
  }

  *#runOneByOne(batch: LocalBatch, values: RowValues): Step<void> {
    const { status, trace, kernels } = this.#parts
    yield* runSequential(this.#forward, values, status, trace)
    if (!needsResults(batch)) {
      yield* runSequential(this.#draw, values, status, trace)
      return
    }
    // Edits are sparse and made by the host; what the callers see is the model's own rows.
    const { device, host, values: logits, vocab } = this.#logits
    const bytes = batch.logitRows * vocab * 4
    kernels.stream.download(host, device, bytes)
    if (batch.slices.some(s => s.state.request.edits)) {
      using arrived = kernels.stream.record()
      yield* arrived.wait()
      this.#editor.apply(batch, logits, vocab)
      kernels.stream.upload(device, host, bytes)
      using left = kernels.stream.record()
      yield* left.wait()
      this.#editor.restore(logits)
    }
    yield* runSequential(this.#draw, values, status, trace)
  }

  close(): void {
    this.#graphs[Symbol.dispose]()
    for (const { finished } of this.#slots) finished[Symbol.dispose]()
    this.#parts.release()
  }
}

function kernelOf(op: BoundOperation): (rows: number) => void {
  if (op.how === 'kernel') return op.kernel
  throw new TypeError(`${op.kind} of layer ${op.layer} is no kernel and cannot be captured`)
}

/** The event of a step's results, and a look at what its kernels complained about. */
const checked = ({ finished, faults }: Slot): DeviceEvent => ({
  get done() {
    return finished.done
  },
  *wait(): Step<void> {
    yield* finished.wait()
    checkFaults(faults)
  },
})
