// What went wrong in a step on a GPU, as errors that say where. Kernels leave the kind and the value of an index outside its table
// behind, not the place; but they run in the order of the program, and what the host wrote is the same for all of them: the first that
// reads it is the one. Ids of experts are made by the program itself; there the first that reads any is named, and a later one may be meant.
import type { CudaDevice } from '../../device/cuda/device.js'
import { CudaError } from '../../device/cuda/errors.js'
import { type Fault, type FaultKind, faultOf } from '../../device/cuda/ops/faults.js'
import type { Operation, Program } from '../../program/index.js'

const READERS: Readonly<Record<FaultKind, readonly Operation['kind'][]>> = {
  row: ['embed', 'gather_rows'],
  slot: ['store_kv'],
  position: ['rope'],
  page: ['attention'],
  expert: ['choose_replicas', 'map_ids', 'experts', 'dispatched_experts'],
}

export interface FaultPlace {
  readonly operation: number
  readonly layer: number
}

/** null when the program has no such operation. */
export function faultPlace({ operations }: Pick<Program, 'operations'>, kind: FaultKind): FaultPlace | null {
  const operation = operations.findIndex(op => READERS[kind].includes(op.kind))
  return operation < 0 ? null : { operation, layer: operations[operation]!.layer }
}

/** @throws CudaError SY_CUDA_BAD_INDEX for what a step's kernels left. @param words copied from the device with its results */
export function checkStep(words: Int32Array, step: number, program: number, programs: readonly Program[]): void {
  const fault = faultOf(words)
  if (fault) throw badIndex(fault, { step, program, ...faultPlace(programs[program]!, fault.kind) })
}

/** Waits for what is queued. What went wrong in it, went wrong in the operation that the rank's status words name. */
export function checkNow(device: Pick<CudaDevice, 'readFault'>): void {
  const fault = device.readFault()
  if (fault) throw badIndex(fault, {})
}

/** The same error, which was seen later than the step that it is of. */
export const inStep = (step: number, error: unknown): unknown =>
  error instanceof CudaError && error.code === 'SY_CUDA_CALL'
    ? new CudaError('SY_CUDA_CALL', { ...error.fields, step })
    : error

const badIndex = ({ kind, index }: Fault, place: Readonly<Record<string, number>>): CudaError =>
  new CudaError('SY_CUDA_BAD_INDEX', { what: kind, index, ...place })
