// What a rank binds and runs with on a GPU: its own context handle, stream and modules on memory that the main thread lent.
import type { Communicator } from '../../comm/index.js'
import { PeerRank } from '../../comm/peer/index.js'
import { type CudaDevice, createCudaDevice } from '../../device/cuda/device.js'
import type { DeviceOps } from '../../device/device-ops.js'
import type { MemorySpan } from '../../device/memory.js'
import { bindCudaProgram, PeerExchange, type ProgramGroup } from '../../program/index.js'
import type { StatusWriter } from '../../runtime/control.js'
import type { TraceRecorder } from '../../trace/index.js'
import type { DrillMaster } from '../drill.js'
import type { CudaRankDevice, PeerGroup, RankLaunch } from '../launch.js'
import type { StepRunner } from '../step-runner.js'
import { gpuStrike } from './gpu-drills.js'
import type { CudaPeers } from './peers.js'
import { CudaRunner } from './runner.js'
import { VALID_ROWS } from './staging.js'

/** To find out whether a fast kernel or the engine is wrong. */
const PLAIN = process.env['SWITCHYARD_CUDA_PLAIN'] === '1'

export interface RankParts {
  readonly launch: RankLaunch
  readonly groups: Readonly<Record<ProgramGroup, Communicator>>
  readonly status: StatusWriter
  readonly trace: TraceRecorder | null
  readonly drill: DrillMaster
  /** Throws when the node gave up. */
  readonly checkAbort: () => void
}

/** @throws CudaError */
export function createCudaRunner(device: CudaRankDevice, parts: RankParts): { name: string; runner: StepRunner } {
  const { launch, groups } = parts
  const cuda = createCudaDevice({ ordinal: device.ordinal, plain: PLAIN, borrowed: true, beforeLoad: parts.checkAbort })
  const ops = routed(cuda.ops, device, launch.fakeRouting)
  const peers = device.peers ? joinPeers(cuda, device.peers, device.peerFault, parts) : null
  const { drill } = parts
  const strike = drill.gpuStrike ? gpuStrike(cuda.kernels, drill.gpuStrike) : null
  const programs = launch.programs.map((program, variant) =>
    drill.rig(
      bindCudaProgram({
        ops,
        fused: !PLAIN,
        activation: device.activation,
        program,
        weights: launch.weights,
        buffers: launch.buffers[variant]!,
        ropeTables: launch.ropeTables,
        idTables: launch.idTables,
        groups,
        dispatchers: {},
        ...(peers ? { exchange: peers.exchange } : {}),
      }),
      strike,
    ),
  )
  const release = () => {
    cuda.context.makeCurrent()
    peers?.rank[Symbol.dispose]()
    cuda[Symbol.dispose]()
  }
  return { name: ops.name, runner: new CudaRunner({ ...parts, device, cuda, programs, peers, release }) }
}

/** This rank among those it exchanges rows with. Several ranks of a GPU share its SMs, so that none waits for room. */
function joinPeers(
  { context, kernels }: CudaDevice,
  { config, bases, ranksOnGpu }: PeerGroup,
  fault: MemorySpan,
  { launch, groups }: RankParts,
): CudaPeers {
  const member = launch.coordinates.rank
  const sharing = ranksOnGpu[member]!
  const { sms } = kernels.properties
  const share = sharing === 1 ? sms : Math.max(1, Math.floor(sms / sharing / 2))
  const rank = new PeerRank({
    ...{ context, kernels, config, member, base: bases[member]!, sms: share, timeoutMs: PEER_TIMEOUT_MS, fault },
  })
  rank.connect(bases)
  return {
    rank,
    exchange: new PeerExchange(rank),
    group: groups.tp,
    // On one core, ranks may be in one thread.
    lockstep: Math.max(...ranksOnGpu) > 1 || launch.cores === 1,
  }
}

/** A rank that did not come for so long is given up; the kernels that wait for it end. */
const PEER_TIMEOUT_MS = 20_000

/** Routers leave padding out, and draw experts evenly where that is asked for. Salts are the places of the routers. */
function routed(ops: DeviceOps, { inputs }: CudaRankDevice, fakeRouting: boolean): DeviceOps {
  const validRows = { span: inputs.buffers[VALID_ROWS]!, offset: 0, stride: 1 }
  const positions = { span: inputs.buffers['positions']!, offset: 0, stride: 1 }
  let salt = 0
  return {
    ...ops,
    router: a => ops.router({ ...a, validRows, ...(fakeRouting ? { fake: { positions, salt: salt++ } } : {}) }),
  }
}
