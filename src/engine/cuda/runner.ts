// Runs the steps of a rank on a GPU. A step is queued and left: inputs brought over by one kernel, the program's kernels or
// their captured graph, results into pinned memory, an event. Nothing waits but who reads the results, and steps whose rows
// of logits the host must see before the draw.
import type { CudaDevice } from '../../device/cuda/device.js'
import { attentionStep } from '../../device/cuda/ops/attention-step.js'
import type { DeviceEvent } from '../../device/event.js'
import { f32View } from '../../device/memory.js'
import type { BoundOperation, RowValues } from '../../program/index.js'
import type { StatusWriter } from '../../runtime/control.js'
import type { Step } from '../../runtime/wait.js'
import type { LocalBatch } from '../../scheduler/index.js'
import type { TraceRecorder } from '../../trace/index.js'
import type { DrillMaster } from '../drill.js'
import { graphBatchFor } from '../graph-batches.js'
import type { CudaRankDevice, RankLaunch } from '../launch.js'
import { LogitEditor } from '../logit-edits.js'
import type { DeviceState } from '../request.js'
import { needsResults, type StepFlight, type StepRunner, type StepWork } from '../step-runner.js'
import { GpuClock } from './gpu-clock.js'
import { DecodeGraphs } from './graphs.js'
import { type CudaPeers, checkPeers, isExchange, meet, waitsForPeers } from './peers.js'
import { makeSlot, type Slot } from './slot.js'
import { DeviceStamps, type StampedStep } from './stamps.js'
import { checkNow, checkStep, inStep } from './step-faults.js'

const STAGE_THREADS = 256
const PUBLISH_THREADS = 256
/** stage_inputs and publish_results. */
const LAUNCHES_AROUND = 2

/** To find the operation whose kernel goes wrong: errors then come where they are made. Slow, and without graphs only. */
const WAIT_FOR_EACH = process.env['SWITCHYARD_CUDA_SYNC'] === '1'

export interface CudaRunnerParts {
  readonly launch: RankLaunch
  readonly device: CudaRankDevice
  readonly cuda: Pick<CudaDevice, 'context' | 'kernels' | 'readFault'>
  /** Operations of each of the rank's programs; the draw is the last. */
  readonly programs: readonly (readonly BoundOperation[])[]
  /** null for one rank. */
  readonly peers: CudaPeers | null
  readonly status: StatusWriter
  readonly trace: TraceRecorder | null
  readonly drill: DrillMaster
  /** Lets go of the kernels and their stream. */
  release(): void
}

/** One of the rank's programs, and how it was captured. */
interface ProgramRun {
  readonly operations: readonly BoundOperation[]
  /** Where the draw begins. */
  readonly draw: number
  readonly graphs: DecodeGraphs
  /** Graphs with stamps between operations. */
  readonly stampedGraphs: DecodeGraphs
  readonly stamps: DeviceStamps | null
}

export class CudaRunner implements StepRunner {
  readonly #parts: CudaRunnerParts
  readonly #slots: readonly Slot[]
  /** Of each program. */
  readonly #runs: readonly ProgramRun[]
  readonly #editor = new LogitEditor()
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
    const { device, launch, programs, trace } = parts
    const { kernels } = parts.cuda
    const { stream } = kernels
    const program = launch.programs[0]!
    this.#logits = {
      device: kernels.addressOf(launch.buffers[0]!['logits']!),
      host: kernels.hostAddressOf(device.logits),
      values: f32View(device.logits),
      vocab: program.buffers.find(b => b.name === 'logits')!.columns,
    }
    const { values: rows, vocab } = this.#logits
    this.#slots = device.slots.map(slot => makeSlot(slot, launch, device, kernels, { logits: rows, vocab }))
    const clock = trace && new GpuClock(kernels, trace, this.#slots[0]!.stamps)
    this.#runs = programs.map((operations): ProgramRun => {
      const draw = operations.findLastIndex(op => op.kind === 'sample')
      return {
        operations,
        draw,
        graphs: new DecodeGraphs(stream),
        stampedGraphs: new DecodeGraphs(stream),
        stamps: trace && clock ? new DeviceStamps(kernels, operations, trace, clock) : null,
      }
    })
  }

  canReplay(batch: LocalBatch): boolean {
    const { graphBatches } = this.#parts.device
    if (batch.tokens === 0) return graphBatches.length > 0
    const plain = batch.mode === 'decode' && batch.logitRows === batch.tokens && !needsResults(batch)
    return plain && graphBatchFor(batch.tokens, graphBatches) !== null
  }

  *run({ batch, plan, variant, values }: StepWork): Step<StepFlight> {
    const { status, trace, cuda, device, peers, drill } = this.#parts
    const { kernels } = cuda
    const of = this.#runs[variant]!
    cuda.context.makeCurrent()
    const stamps = of.stamps?.wanted ? of.stamps : null
    const slot = this.#slots[this.#turn]!
    this.#turn = (this.#turn + 1) % this.#slots.length
    status.phase('forward')
    status.program(variant)
    trace?.rows(values.rows)
    // Attention looks for the structure of the batch once a step, and not at all where every sequence brings one row.
    const hints = attentionStep(kernels)
    hints.decodeOnly = batch.slices.every(s => s.count === 1)
    hints.generation++
    // Rows of all ranks are part of a normal dispatch's launches, so no graph of one rank's rows can hold it.
    const replays = plan.decodeGraph && plan.dispatch !== 'normal'
    const captured = device.capture && !peers?.lockstep && !drill.strikesNow
    // A rank without rows replays one of padding: the others wait for its launches, and one by one those take longer than a step.
    const rows = batch.tokens === 0 && captured ? 1 : batch.tokens
    const size = replays ? graphBatchFor(rows, device.graphBatches) : null
    const pieces = slot.inputs.write(batch, size ?? batch.tokens)
    if (batch.tokens > 0 && drill.takeBadPage()) slot.inputs.spoilPage(this.#pageOutside)
    slot.stage.launch([pieces, 1, 1], STAGE_THREADS)
    peers?.exchange.begin(size ?? batch.tokens, values.rows.gathered)
    this.#graphLaunches = 0
    if (size === null) yield* this.#runOneByOne(of, batch, values, stamps)
    else if (captured) this.#replay(of, size, stamps)
    else yield* this.#launchPadded(of, size, stamps)
    stamps?.fetch(slot.stamps.host)
    slot.publish.set(4, batch.logitRows)
    slot.publish.launch([1, 1, 1], PUBLISH_THREADS)
    slot.finished.record(kernels.stream)
    const stamped = stamps && { stamps, step: plan.step, program: variant, rows: size ?? batch.tokens }
    return { batch, finished: this.#seen(slot, plan.step, variant, stamped), outputs: slot.outputs }
  }

  get #pageOutside(): number {
    const { kvSlots, pageSize } = this.#parts.launch.limits
    return Math.ceil(kvSlots / pageSize) + 7
  }

  get queue(): number {
    return this.#parts.cuda.kernels.stream.handle
  }

  get state(): DeviceState {
    return { graphSteps: this.#graphSteps, graphLaunches: this.#graphLaunches }
  }

  #replay(of: ProgramRun, size: number, stamps: DeviceStamps | null): void {
    const graphs = stamps ? of.stampedGraphs : of.graphs
    const graph = graphs.run(size, () => this.#launchAll(of, size, stamps))
    if (!graph) return
    this.#graphSteps++
    const stamped = stamps ? of.operations.length + 1 : 0
    this.#graphLaunches = graph.nodes - stamped + LAUNCHES_AROUND
  }

  /** Every row of a decode step is drawn: all row counts are the batch's. */
  #launchAll({ operations }: ProgramRun, rows: number, stamps: DeviceStamps | null): void {
    stamps?.at(0)
    operations.forEach((op, i) => {
      kernelOf(op)(rows)
      stamps?.at(i + 1)
    })
  }

  *#launchPadded({ operations }: ProgramRun, rows: number, stamps: DeviceStamps | null): Step<void> {
    stamps?.at(0)
    yield* this.#launch(operations, 0, () => rows, stamps)
  }

  /** The event of a step's results, a look at what its kernels complained about, and the times of a traced one. */
  #seen(
    { finished, faults, stamps }: Slot,
    step: number,
    program: number,
    stamped: (StampedStep & { stamps: DeviceStamps }) | null,
  ): DeviceEvent {
    const { peers, launch } = this.#parts
    return {
      get done() {
        return false
      },
      *wait(): Step<void> {
        try {
          yield* finished.wait()
        } catch (error) {
          throw inStep(step, error)
        }
        if (peers) checkPeers(peers.rank)
        checkStep(faults, step, program, launch.programs)
        stamped?.stamps.record(stamps.values, stamped)
      },
    }
  }

  *#runOneByOne(of: ProgramRun, batch: LocalBatch, { rows }: RowValues, stamps: DeviceStamps | null): Step<void> {
    const { context, kernels } = this.#parts.cuda
    const [forward, draw] = [of.operations.slice(0, of.draw), of.operations.slice(of.draw)]
    stamps?.at(0)
    yield* this.#launch(forward, 0, op => rows[op.rows], stamps)
    if (!needsResults(batch)) {
      yield* this.#launch(draw, of.draw, op => rows[op.rows], stamps)
      return
    }
    // Edits are sparse and made by the host; what the callers see is the model's own rows.
    const { device, host, values: logits, vocab } = this.#logits
    const bytes = batch.logitRows * vocab * 4
    kernels.stream.download(host, device, bytes)
    if (batch.slices.some(s => s.state.request.edits)) {
      using arrived = kernels.stream.record()
      yield* arrived.wait()
      context.makeCurrent()
      this.#editor.apply(batch, logits, vocab)
      kernels.stream.upload(device, host, bytes)
      using left = kernels.stream.record()
      yield* left.wait()
      context.makeCurrent()
      this.#editor.restore(logits)
    }
    yield* this.#launch(draw, of.draw, op => rows[op.rows], stamps)
  }

  /** @param rowsOf an operation */
  *#launch(
    operations: readonly BoundOperation[],
    before: number,
    rowsOf: (op: BoundOperation) => number,
    stamps: DeviceStamps | null,
  ): Step<void> {
    const { status, peers, cuda } = this.#parts
    for (const [i, op] of operations.entries()) {
      status.operation(op.layer, op.index)
      const rows = rowsOf(op)
      if (!peers) kernelOf(op)(rows)
      else if (peers.lockstep && waitsForPeers(op)) {
        yield* meet(peers, op)
        cuda.context.makeCurrent()
        kernelOf(op)(rows)
        yield* meet(peers, op)
        cuda.context.makeCurrent()
      }
      // A rank without rows still receives those of others.
      else if (rows > 0 || isExchange(op)) kernelOf(op)(rows)
      if (WAIT_FOR_EACH) checkNow(cuda)
      stamps?.at(before + i + 1)
    }
  }

  close(): void {
    this.#parts.cuda.context.makeCurrent()
    for (const { graphs, stampedGraphs } of this.#runs) {
      graphs[Symbol.dispose]()
      stampedGraphs[Symbol.dispose]()
    }
    for (const { finished } of this.#slots) finished[Symbol.dispose]()
    this.#parts.release()
  }
}

function kernelOf(op: BoundOperation): (rows: number) => void {
  if (op.how === 'kernel') return op.kernel
  throw new TypeError(`${op.kind} of layer ${op.layer} is no kernel of the device`)
}
