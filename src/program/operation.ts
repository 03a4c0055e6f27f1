// The vocabulary of a program: operations over named buffers with symbolic row counts. Plain data; what an operation
// computes is documented where it is implemented (device/ops.ts for kernels, comm/communicator.ts for collectives).
import type { GatedActivation, RouterSpec } from '../device/ops.js'

/** Columns [column, column + width) of a buffer. */
export interface Ref {
  readonly buffer: string
  readonly column: number
  readonly width: number
}

/** Name of a loaded weight (formats/weight-spec.ts). */
export type WeightName = string

/**
 * A number of rows that a step binds: `tokens` (local rows of this attention-DP rank), `logitRows` (rows to sample), … Each symbol has a bound fixed at
 * build time, which sizes buffers, and a value fixed once per step.
 */
export type RowSymbol = 'tokens' | 'logitRows'

export interface BatchRefs {
  readonly rowSequence: Ref
  readonly positions: Ref
  readonly pageTable: Ref
  readonly pageSize: number
}

/** Arguments by kind. Keys of buffer arguments are listed by role in OPERATIONS. */
export interface OperationArgs {
  embed: { out: Ref; ids: Ref; table: WeightName }
  rms_norm: { out: Ref; x: Ref; weight: WeightName; width: number; groups: number; eps: number }
  add_rms_norm: { out: Ref; residual: Ref; x: Ref; weight: WeightName; eps: number }
  add: { out: Ref; a: Ref; b: Ref }
  copy: { out: Ref; x: Ref }
  gather_rows: { out: Ref; x: Ref; index: Ref }
  linear: { out: Ref; x: Ref; weight: WeightName; bias?: WeightName; accumulate?: boolean }
  head_linear: { out: Ref; outHeadStride: number; x: Ref; xHeadStride: number; weight: WeightName }
  rope: {
    out: Ref
    outHeadStride: number
    x: Ref
    xHeadStride: number
    heads: number
    width: number
    positions: Ref
    table: string
    interleaved: boolean
  }
  store_kv: { kv: Ref; x: Ref; slots: Ref }
  attention: {
    out: Ref
    q: Ref
    kv: Ref
    batch: BatchRefs
    heads: number
    kvHeads: number
    qkWidth: number
    vWidth: number
    keyOffset: number
    valueOffset: number
    scale: number
    window?: number
    sinks?: WeightName
  }
  router: { ids: Ref; weights: Ref; logits: Ref; bias?: WeightName; spec: RouterSpec }
  gated_activation: { out: Ref; x: Ref; width: number; activation: GatedActivation }
  sigmoid_scale: { out: Ref; x: Ref; gate: Ref; accumulate?: boolean }
  experts: {
    out: Ref
    x: Ref
    ids: Ref
    weights: Ref
    scratch: Ref
    topK: number
    gateUp: WeightName
    down: WeightName
    gateUpBias?: WeightName
    downBias?: WeightName
    activation: GatedActivation
  }
  sample: { out: Ref; logits: Ref; params: Ref; logprob: Ref }
}

export type OperationKind = keyof OperationArgs

export type Operation = {
  readonly [K in OperationKind]: {
    readonly kind: K
    /** -1 outside layers. */
    readonly layer: number
    readonly rows: RowSymbol
    readonly args: Readonly<OperationArgs[K]>
    /** What it is for, in a reader's words: "query and key-value compression". */
    readonly label: string
    /** Another batch may run before this operation (two-batch overlap). */
    readonly yieldBefore: boolean
  }
}[OperationKind]

/** Which arguments an operation reads and writes. An argument in both is updated in place. */
export interface OperationRoles {
  readonly reads: readonly string[]
  readonly writes: readonly string[]
}

export const OPERATIONS: { readonly [K in OperationKind]: OperationRoles } = {
  embed: { reads: ['ids'], writes: ['out'] },
  rms_norm: { reads: ['x'], writes: ['out'] },
  add_rms_norm: { reads: ['residual', 'x'], writes: ['out', 'residual'] },
  add: { reads: ['a', 'b'], writes: ['out'] },
  copy: { reads: ['x'], writes: ['out'] },
  gather_rows: { reads: ['x', 'index'], writes: ['out'] },
  linear: { reads: ['x'], writes: ['out'] },
  head_linear: { reads: ['x'], writes: ['out'] },
  rope: { reads: ['x', 'positions'], writes: ['out'] },
  store_kv: { reads: ['x', 'slots'], writes: ['kv'] },
  attention: { reads: ['q', 'kv'], writes: ['out'] },
  router: { reads: ['logits'], writes: ['ids', 'weights'] },
  gated_activation: { reads: ['x'], writes: ['out'] },
  sigmoid_scale: { reads: ['x', 'gate'], writes: ['out'] },
  experts: { reads: ['x', 'ids', 'weights'], writes: ['out', 'scratch'] },
  sample: { reads: ['logits', 'params'], writes: ['out', 'logprob'] },
}

const refs = (op: Operation, roles: readonly string[]): Ref[] => {
  const args = op.args as unknown as Record<string, Ref | undefined>
  return roles.flatMap(role => (args[role] ? [args[role]] : []))
}

/** Buffers an operation reads, including those it reads through a batch description or accumulates into. */
export function readsOf(op: Operation): Ref[] {
  const reads = refs(op, OPERATIONS[op.kind].reads)
  if (op.kind === 'attention') reads.push(op.args.batch.rowSequence, op.args.batch.positions, op.args.batch.pageTable)
  if ((op.kind === 'linear' || op.kind === 'sigmoid_scale') && op.args.accumulate) reads.push(op.args.out)
  return reads
}

export const writesOf = (op: Operation): Ref[] => refs(op, OPERATIONS[op.kind].writes)
