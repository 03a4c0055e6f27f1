// The vocabulary of a program: operations over named buffers with symbolic row counts. Plain data; what an operation
// computes is documented where it is implemented (device/ops.ts for kernels, comm/communicator.ts for collectives).
import type { GatedActivation, RouterSpec } from '../device/ops.js'
import type { DispatchMode } from './expert-dispatch.js'

/** Columns [column, column + width) of a buffer. */
export interface Ref {
  readonly buffer: string
  readonly column: number
  readonly width: number
}

/** Name of a loaded weight (formats/weight-spec.ts). */
export type WeightName = string

/**
 * A number of rows that a step binds. Each symbol has a bound fixed at build time, which sizes buffers, and a value
 * fixed once per step by the plan (scheduler/step-rows.ts).
 * - `tokens`: rows of this attention-DP rank's own batch.
 * - `padded`: rows it brings into a gather: `tokens`, or the longest rank's under MAX_LEN.
 * - `gathered`: rows of all attention-DP ranks together, padding included.
 * - `slice`: this rank's part of `padded` when rows are cut over attention-TP too.
 * - `received`: rows that a dispatch brought here; its value is known to the operations of the dispatch only.
 * - `logitRows`, `gatheredLogits`: rows to sample, of this DP rank and of all.
 */
export type RowSymbol = 'tokens' | 'padded' | 'gathered' | 'slice' | 'received' | 'logitRows' | 'gatheredLogits'

/**
 * Rows that each member of a group brings to or takes from a collective.
 * - `dp`: a DP rank's `padded`, by member of the attention-DP group.
 * - `attnTp`: a member's `slice`, by member of the attention-TP group.
 * - `tp`: a rank's `slice` of its DP rank's rows, by rank.
 * - `logits`: a DP rank's `logitRows`.
 */
export type CountsSymbol = 'dp' | 'attnTp' | 'tp' | 'logits'

/** Groups that collectives of a program run in. `tp` is all ranks. */
export type ProgramGroup = 'tp' | 'attnDp' | 'attnTp'

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
  /** x = min(max(x, -limit), limit), in place. */
  clamp: { x: Ref; limit: number }
  /** out[:, 0] = sum of squares of x. With an all_reduce between, the first half of a norm over rows cut into pieces. */
  square_sum: { out: Ref; x: Ref }
  /** out = x / sqrt(sums / total + eps) * weight: the second half. */
  rms_scale: { out: Ref; x: Ref; sums: Ref; weight: WeightName; total: number; eps: number }
  /** Begins to send rows to the ranks of their experts. ids are physical experts. */
  dispatch_send: { mode: DispatchMode; x: Ref; ids: Ref; weights: Ref }
  /** Waits for the rows that come here. The sent rows may be reused afterwards. */
  dispatch_receive: { mode: DispatchMode; x: Ref }
  /** partials = for each received row the weighted sum over the experts held here. */
  dispatched_experts: {
    mode: DispatchMode
    partials: Ref
    held: Ref
    scratch: Ref
    topK: number
    /** i32 table: physical expert of this rank → row of the node's stack. */
    table: string
    gateUp: WeightName
    down: WeightName
    gateUpBias?: WeightName
    downBias?: WeightName
    activation: GatedActivation
  }
  /** Begins to send partial rows back. */
  combine_send: { mode: DispatchMode; partials: Ref; out: Ref }
  /** out = for each own row the sum over ranks of what came back. */
  combine_receive: { mode: DispatchMode; partials: Ref; out: Ref }
  /** out = the members' rows of x, one member after another. */
  all_gather: { out: Ref; x: Ref; group: ProgramGroup; counts: CountsSymbol }
  /** x = sum over the group, in place. */
  all_reduce: { x: Ref; group: ProgramGroup }
  /** out = own rows of the sum over the group of x. */
  reduce_scatter: { out: Ref; x: Ref; group: ProgramGroup; counts: CountsSymbol }
  /**
   * residual += own rows of the sum over the group of x; out = residual / rms(residual) * weight. `counts` names the members'
   * rows (as reduce_scatter); null: all `padded` rows are the own ones (as all_reduce). One pass over the rows of the plan.
   */
  reduce_norm: {
    out: Ref
    residual: Ref
    x: Ref
    group: ProgramGroup
    counts: CountsSymbol | null
    weight: WeightName
    eps: number
  }
  /** out = own rows of the members' column blocks side by side. `x` holds all rows named by `counts`, or the own ones when null. */
  gather_columns: { out: Ref; x: Ref; group: ProgramGroup; widths: readonly number[]; counts: CountsSymbol | null }
  /** out (all DP ranks' rows) = zeros, but for the own rows, which are x when `contribute`. What follows is an all_reduce. */
  place_rows: { out: Ref; x: Ref; contribute: boolean }
  /** out = own rows of x, which holds the rows of every member named by `counts`. */
  cut_rows: { out: Ref; x: Ref; counts: CountsSymbol }
  /** ids = -1 in rows [tokens, padded): padding never reaches an expert or a statistic. */
  clear_padding: { ids: Ref }
  /** out = table[ids], -1 stays -1. `table` names an i32 table of the placement. */
  map_ids: { out: Ref; ids: Ref; table: string }
  /** Logical → physical experts: one of each expert's replicas, by a hash of layer, expert, request and position. */
  choose_replicas: { out: Ref; ids: Ref; requestKeys: Ref; positions: Ref; table: string; layer: number }
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
  clamp: { reads: ['x'], writes: ['x'] },
  square_sum: { reads: ['x'], writes: ['out'] },
  rms_scale: { reads: ['x', 'sums'], writes: ['out'] },
  dispatch_send: { reads: ['x', 'ids', 'weights'], writes: [] },
  dispatch_receive: { reads: ['x'], writes: [] },
  dispatched_experts: { reads: [], writes: ['partials', 'held', 'scratch'] },
  combine_send: { reads: ['partials'], writes: ['out'] },
  combine_receive: { reads: ['partials'], writes: ['out'] },
  all_gather: { reads: ['x'], writes: ['out'] },
  all_reduce: { reads: ['x'], writes: ['x'] },
  reduce_scatter: { reads: ['x'], writes: ['out'] },
  reduce_norm: { reads: ['residual', 'x'], writes: ['out', 'residual'] },
  gather_columns: { reads: ['x'], writes: ['out'] },
  place_rows: { reads: ['x'], writes: ['out'] },
  cut_rows: { reads: ['x'], writes: ['out'] },
  clear_padding: { reads: ['ids'], writes: ['ids'] },
  map_ids: { reads: ['ids'], writes: ['out'] },
  choose_replicas: { reads: ['ids', 'requestKeys', 'positions'], writes: ['out'] },
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
