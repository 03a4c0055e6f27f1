// What one step on its way to a GPU and back uses: a copy of the inputs, the launches around the program, and where its results come to.
// Steps take the slots in turns.
import type { CudaKernels } from '../../device/cuda/kernels.js'
import { FAULT_BYTES, faultAddress } from '../../device/cuda/ops/faults.js'
import type { CudaEvent, LaunchArguments } from '../../device/cuda/types.js'
import { f32View, hostBuffer, i32View } from '../../device/memory.js'
import type { CudaRankDevice, RankLaunch } from '../launch.js'
import type { RankOutputs } from '../step-runner.js'
import type { PinnedStamps } from './gpu-clock.js'
import { StagedInputs, type StepSlot } from './staging.js'

export interface Slot {
  readonly inputs: StagedInputs
  readonly stage: LaunchArguments
  readonly publish: LaunchArguments
  readonly finished: CudaEvent
  readonly outputs: RankOutputs
  readonly faults: Int32Array
  /** Where the GPU's clock is copied to in traced steps. */
  readonly stamps: PinnedStamps
}

/** @param rows of logits, which all slots share */
export function makeSlot(
  { mirror, pieces, results, stamps }: StepSlot,
  launch: RankLaunch,
  device: CudaRankDevice,
  kernels: CudaKernels,
  rows: Pick<RankOutputs, 'logits' | 'vocab'>,
): Slot {
  const program = launch.programs[0]!
  const buffers = launch.buffers[0]!
  const inputs = new StagedInputs({ mirror, pieces, results, stamps }, program, launch.limits)
  const { idsFrom } = inputs
  const sampled = kernels.addressOf(buffers['sampled']!)
  const stage = kernels
    .kernel('inputs.cu', 'stage_inputs')
    .bind(
      ['u64', 'u64', 'u64', 'u64', 'i32', 'i32'],
      [
        ...[kernels.addressOf(device.inputs.span), kernels.addressOf(mirror.span), kernels.addressOf(pieces)],
        ...[sampled, idsFrom, idsFrom + program.bounds.tokens],
      ],
    )
  const capacity = program.bounds.logitRows
  const publish = kernels
    .kernel('inputs.cu', 'publish_results')
    .bind(
      ['u64', 'u64', 'u64', 'u64', 'i32', 'i32'],
      [
        ...[kernels.addressOf(results), sampled, kernels.addressOf(buffers['logprob']!)],
        ...[faultAddress(kernels), 0, capacity],
      ],
    )
  const words = i32View(results)
  return {
    inputs,
    stage,
    publish,
    finished: kernels.stream.record(),
    outputs: {
      ...rows,
      sampled: words.subarray(0, capacity),
      logprobs: f32View(results).subarray(capacity, 2 * capacity),
    },
    faults: words.subarray(2 * capacity, 2 * capacity + FAULT_BYTES / 4),
    stamps: {
      host: kernels.hostAddressOf(stamps),
      values: new BigUint64Array(hostBuffer(stamps), stamps.byteOffset, stamps.byteLength / 8),
    },
  }
}
