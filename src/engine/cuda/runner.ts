// Runs the steps of a rank on a GPU. A step is queued and left: inputs brought over by one kernel, the program's kernels or
// their captured graph, results into pinned memory, an event. Nothing waits but who reads the results, and steps whose rows
// of logits the host must see before the draw.
import type { CudaKernels } from '../../device/cuda/kernels.js'
import { attentionStep } from '../../device/cuda/ops/attention-step.js'
import { checkFaults, faultAddress } from '../../device/cuda/ops/faults.js'
import type { CudaEvent, LaunchArguments } from '../../device/cuda/types.js'
import type { DeviceEvent } from '../../device/event.js'
import { f32View, hostBuffer, i32View } from '../../device/memory.js'
import type { ProgramLimits } from '../../models/index.js'
import type { BoundOperation, Program, RowValues } from '../../program/index.js'
import type { StatusWriter } from '../../runtime/control.js'
import type { Step } from '../../runtime/wait.js'
import type { LocalBatch } from '../../scheduler/index.js'
import type { TraceRecorder } from '../../trace/index.js'
import { graphBatchFor } from '../graph-batches.js'
import type { CudaRankDevice, RankLaunch } from '../launch.js'
import { LogitEditor } from '../logit-edits.js'
import type { DeviceState } from '../request.js'
import { needsResults, type RankOutputs, type StepFlight, type StepRunner, type StepWork } from '../step-runner.js'
import { DecodeGraphs } from './graphs.js'
import { StagedInputs } from './staging.js'
import { DeviceStamps, type StampedStep } from './stamps.js'

const STAGE_THREADS = 256
const PUBLISH_THREADS = 256
/** stage_inputs and publish_results. */
const LAUNCHES_AROUND = 2

/** To find the operation whose kernel goes wrong: errors then come where they are made. Slow, and without graphs only. */
const WAIT_FOR_EACH = process.env['SWITCHYARD_CUDA_SYNC'] === '1'

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
  /** Where the GPU's clock is copied to in traced steps. */
  readonly stamps: { readonly host: number; readonly values: BigUint64Array }
}

export class CudaRunner implements StepRunner {
  readonly #parts: CudaRunnerParts
  readonly #slots: readonly Slot[]
  readonly #graphs: DecodeGraphs
  /** Graphs with stamps between operations. */
  readonly #stampedGraphs: DecodeGraphs
  readonly #stamps: DeviceStamps | null
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
  #graphSteps = 0
  #graphLaunches = 0

  constructor(parts: CudaRunnerParts) {
    this.#parts = parts
    const { device, kernels, launch, operations, program, trace } = parts
    const draw = operations.findLastIndex(op => op.kind === 'sample')
    this.#forward = operations.slice(0, draw)
    this.#draw = operations.slice(draw)
    this.#graphs = new DecodeGraphs(kernels.stream)
    this.#stampedGraphs = new DecodeGraphs(kernels.stream)
    this.#stamps = trace ? new DeviceStamps(kernels, operations, trace) : null
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
    const { mirror, pieces, results, stamps } = device.slots[index]!
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
      stamps: {
        host: kernels.hostAddressOf(stamps),
        values: new BigUint64Array(hostBuffer(stamps), stamps.byteOffset, stamps.byteLength / 8),
      },
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
    const stamps = this.#stamps?.wanted ? this.#stamps : null
    const slot = this.#slots[this.#turn]!
    this.#turn = (this.#turn + 1) % this.#slots.length
    status.phase('forward')
    status.program(variant)
    trace?.rows(values.rows)
    // Attention looks for the structure of the batch once a step, and not at all where every sequence brings one row.
    const hints = attentionStep(kernels)
    hints.decodeOnly = batch.slices.every(s => s.count === 1)
    hints.generation++
    const size = plan.decodeGraph ? graphBatchFor(batch.tokens, device.graphBatches) : null
    const pieces = slot.inputs.write(batch, size ?? batch.tokens)
    slot.stage.launch([pieces, 1, 1], STAGE_THREADS)
    if (size !== null && device.capture) this.#replay(size, stamps)
    else if (size !== null) this.#launchAll(size, stamps)
    else yield* this.#runOneByOne(batch, values, stamps)
    stamps?.fetch(slot.stamps.host)
    slot.publish.set(4, batch.logitRows)
    slot.publish.launch([1, 1, 1], PUBLISH_THREADS)
    slot.finished.record(kernels.stream)
    const stamped = stamps && { step: plan.step, program: variant, rows: size ?? batch.tokens }
    return { batch, finished: this.#seen(slot, stamped), outputs: slot.outputs }
  }

  get state(): DeviceState {
    return { graphSteps: this.#graphSteps, graphLaunches: this.#graphLaunches }
  }

  #replay(size: number, stamps: DeviceStamps | null): void {
    const graphs = stamps ? this.#stampedGraphs : this.#graphs
    const graph = graphs.run(size, () => this.#launchAll(size, stamps))
    if (!graph) return
    this.#graphSteps++
    if (!stamps) this.#graphLaunches = graph.nodes + LAUNCHES_AROUND
  }

  /** Every row of a decode step is drawn: all row counts are the batch's. */
  #launchAll(rows: number, stamps: DeviceStamps | null): void {
    const { operations } = this.#parts
    stamps?.at(0)
    operations.forEach((op, i) => {
      kernelOf(op)(rows)
      stamps?.at(i + 1)
    })
  }

  /** The event of a step's results, a look at what its kernels complained about, and the times of a traced one. */
  #seen({ finished, faults, stamps }: Slot, stamped: StampedStep | null): DeviceEvent {
    const all = this.#stamps
    return {
      get done() {
        return false
      },
      *wait(): Step<void> {
        yield* finished.wait()
        checkFaults(faults)
        if (stamped) all!.record(stamps.values, stamped)
      },
    }
  }

  *#runOneByOne(batch: LocalBatch, values: RowValues, stamps: DeviceStamps | null): Step<void> {
    const { kernels } = this.#parts
    stamps?.at(0)
    this.#launch(this.#forward, 0, values, stamps)
    if (!needsResults(batch)) {
      this.#launch(this.#draw, this.#forward.length, values, stamps)
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
    this.#launch(this.#draw, this.#forward.length, values, stamps)
  }

  #launch(operations: readonly BoundOperation[], before: number, values: RowValues, stamps: DeviceStamps | null): void {
    const { status } = this.#parts
    operations.forEach((op, i) => {
      status.operation(op.layer, op.index)
      kernelOf(op)(values.rows[op.rows])
      if (WAIT_FOR_EACH) this.#parts.kernels.stream.synchronize()
      stamps?.at(before + i + 1)
    })
  }

  close(): void {
    this.#graphs[Symbol.dispose]()
    this.#stampedGraphs[Symbol.dispose]()
    for (const { finished } of this.#slots) finished[Symbol.dispose]()
    this.#parts.release()
  }
}

function kernelOf(op: BoundOperation): (rows: number) => void {
  if (op.how === 'kernel') return op.kernel
  throw new TypeError(`${op.kind} of layer ${op.layer} is no kernel of the device`)
}
