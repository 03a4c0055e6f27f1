// Everything a rank works with, built once from its launch: views, kernels, communicators, scheduler. No module state, so
// that many ranks can live in one thread.
import { type Communicator, type ExpertBuffer, ShmCommunicator, ShmExpertBuffer } from '../comm/index.js'
import { createCpuDevice } from '../device/cpu/index.js'
import { f32View, i32View } from '../device/memory.js'
import { PagePool } from '../kvcache/index.js'
import type { ProgramVariant } from '../models/index.js'
import { LowLatencyDispatcher, NormalDispatcher } from '../moe/index.js'
import { bindProgram, type ProgramGroup } from '../program/index.js'
import type { Clock } from '../runtime/clock.js'
import { ControlBlock, type StatusWriter } from '../runtime/control.js'
import { Scheduler } from '../scheduler/index.js'
import { TraceRecorder } from '../trace/index.js'
import { BatchWriter } from './batch-writer.js'
import { createCudaRunner } from './cuda/rank-device.js'
import { DrillMaster } from './drill.js'
import type { CpuRankDevice, RankLaunch } from './launch.js'
import { HostRunner, type StepRunner } from './step-runner.js'

export interface RankContext {
  readonly launch: RankLaunch
  readonly control: ControlBlock
  readonly status: StatusWriter
  /** Name of the kernels, for reports. */
  readonly kernels: string
  readonly groups: Readonly<Record<ProgramGroup, Communicator>>
  /** null without an all-to-all backend. */
  readonly expertBuffer: ExpertBuffer | null
  readonly pool: PagePool
  readonly scheduler: Scheduler
  /** Member 0 of its attention-TP group: it schedules, samples for the caller and reports. The others follow. */
  readonly leads: boolean
  readonly drill: DrillMaster
  /** null when the engine was started without tracing. */
  readonly trace: TraceRecorder | null
  readonly runner: StepRunner
}

export function buildRankContext(launch: RankLaunch, traceClock: Clock): RankContext {
  const { limits, coordinates } = launch
  const control = ControlBlock.attach(launch.control)
  const { rank } = coordinates
  const checkAbort = () => control.throwIfAborted(rank)
  checkAbort()
  const groups = {
    tp: new ShmCommunicator(control, launch.groups.tp, rank),
    attnDp: new ShmCommunicator(control, launch.groups.attnDp, rank),
    attnTp: new ShmCommunicator(control, launch.groups.attnTp, rank),
  }
  const trace = launch.trace ? new TraceRecorder(launch.trace, traceClock) : null
  const expertBuffer = launch.expertBuffer ? new ShmExpertBuffer(launch.expertBuffer, rank) : null
  const dispatchers = expertBuffer
    ? { normal: new NormalDispatcher(expertBuffer, trace), low_latency: new LowLatencyDispatcher(expertBuffer, trace) }
    : {}
  const pool = new PagePool(Math.floor(limits.kvSlots / limits.pageSize), limits.pageSize)
  const drill = new DrillMaster(launch.drill, rank)
  drill.starting()
  const status = control.statusWriter(rank, trace)
  const leads = coordinates.attnTp === 0 && coordinates.attnCp === 0
  const { device } = launch
  const { name, runner } =
    device.kind === 'cuda'
      ? createCudaRunner(device, { launch, groups, status, trace, drill, checkAbort })
      : createHostRunner({ launch, device, groups, status, trace, leads, drill, dispatchers })
  return {
    launch,
    control,
    status,
    kernels: name,
    groups,
    expertBuffer,
    pool,
    scheduler: new Scheduler(pool, {
      chunkedPrefillSize: launch.chunkedPrefillSize,
      maxRunningRequests: limits.sequences,
      logitRows: limits.sequences,
      ...launch.scheduling,
    }),
    leads,
    drill,
    trace,
    runner,
  }
}

type HostParts = Pick<RankContext, 'groups' | 'status' | 'trace' | 'leads' | 'drill'> & {
  readonly launch: RankLaunch
  readonly device: CpuRankDevice
  readonly dispatchers: Parameters<typeof bindProgram>[0]['dispatchers']
}

function createHostRunner(parts: HostParts): { name: string; runner: StepRunner } {
  const { launch, groups, status, trace, leads, drill, dispatchers } = parts
  const { kernels, wasmNode } = parts.device
  const device = createCpuDevice({ kernels, ...(wasmNode ? { wasmNode } : {}) })
  const bind = (index: number) =>
    drill.rig(
      bindProgram({
        ops: device.ops,
        fakeRouting: launch.fakeRouting,
        program: launch.programs[index]!,
        weights: launch.weights,
        buffers: launch.buffers[index]!,
        ropeTables: launch.ropeTables,
        idTables: launch.idTables,
        groups,
        dispatchers,
      }),
    )
  const split = (_: ProgramVariant, index: number) => {
    const operations = bind(index)
    return { forward: operations.slice(0, -1), draw: operations.slice(-1) }
  }
  const buffers = launch.buffers[0]!
  const runner = new HostRunner({
    groups,
    status,
    trace,
    leads,
    operations: launch.variants.map(split),
    inputs: new BatchWriter(buffers, launch.limits),
    outputs: {
      logits: f32View(buffers['logits']!),
      sampled: i32View(buffers['sampled']!),
      logprobs: f32View(buffers['logprob']!),
      vocab: launch.programs[0]!.buffers.find(b => b.name === 'logits')!.columns,
    },
    overlap: launch.overlap,
  })
  return { name: device.name, runner }
}
