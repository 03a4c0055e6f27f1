// Where in a program an index outside its table was met first. Kernels leave its kind and its value behind, not the place; but they
// run in the order of the program, and what the host wrote is the same for all of them: the first that reads it is the one.
// Ids of experts are made by the program itself; there the first that reads any is named, and a later layer may be meant.
import type { FaultKind } from '../../device/cuda/ops/faults.js'
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
