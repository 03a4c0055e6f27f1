// What a rank binds and runs with on a GPU: its own context handle, stream and modules on memory that the main thread lent.
import { createCudaDevice } from '../../device/cuda/device.js'
import type { DeviceOps } from '../../device/device-ops.js'
import { type BoundOperation, bindCudaProgram } from '../../program/index.js'
import type { StatusWriter } from '../../runtime/control.js'
import type { TraceRecorder } from '../../trace/index.js'
import type { CudaRankDevice, RankLaunch } from '../launch.js'
import type { StepRunner } from '../step-runner.js'
import { CudaRunner } from './runner.js'
import { VALID_ROWS } from './staging.js'

/** To find out whether a fast kernel or the engine is wrong. */
const PLAIN = process.env['SWITCHYARD_CUDA_PLAIN'] === '1'

export interface RankParts {
  readonly launch: RankLaunch
  readonly status: StatusWriter
  readonly trace: TraceRecorder | null
  /** Puts a failure drill among the operations. */
  rig(operations: readonly BoundOperation[]): readonly BoundOperation[]
}

/** @throws CudaError */
export function createCudaRunner(device: CudaRankDevice, parts: RankParts): { name: string; runner: StepRunner } {
  const { launch, status, trace } = parts
  const cuda = createCudaDevice({ ordinal: device.ordinal, plain: PLAIN })
  const { kernels } = cuda
  const ops = routed(cuda.ops, device, launch.fakeRouting)
  const program = launch.programs[0]!
  const operations = parts.rig(
    bindCudaProgram({
      ops,
      fused: !PLAIN,
      activation: device.activation,
      program,
      weights: launch.weights,
      buffers: launch.buffers[0]!,
      ropeTables: launch.ropeTables,
      idTables: launch.idTables,
      // One rank: its program exchanges nothing.
      groups: {} as never,
      dispatchers: {},
    }),
  )
  const release = () => cuda[Symbol.dispose]()
  const { limits } = launch
  const runner = new CudaRunner({ launch, device, kernels, operations, program, limits, status, trace, release })
  return { name: ops.name, runner }
}

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
