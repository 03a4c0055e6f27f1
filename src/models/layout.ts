// Where a rank's program stands: sizes, coordinates and the choices that shape the wiring of a layout.
import type { DpPaddingMode } from '../layers/index.js'
import type { ParallelSizes, RankCoordinates } from '../parallel/index.js'
import type { DispatchMode } from '../program/index.js'

/** Sizes that bound a program's buffers. */
export interface ProgramLimits {
  /** Rows of one step on one attention-DP rank. */
  readonly tokens: number
  /** Sequences of one step, and rows that are sampled. */
  readonly sequences: number
  /** Longest sequence, in tokens. */
  readonly contextLength: number
  readonly pageSize: number
  /** KV slots of a rank's pool. */
  readonly kvSlots: number
}

/** A rank has one program for each way a step can run. */
export interface ProgramVariant {
  readonly padding: DpPaddingMode
  readonly dispatch: 'none' | DispatchMode
}

export interface RankLayout extends ProgramVariant {
  readonly sizes: ParallelSizes
  readonly rank: RankCoordinates
  readonly sumLenGather: 'all_gatherv' | 'all_reduce'
  /** Boundaries between layers as separate operations: the reference of the fused ones. */
  readonly unfused?: boolean
  /** Dense layers: cut over all ranks (false) or whole on every attention-DP rank (true, --moe-dense-tp-size 1). */
  readonly denseLocal: boolean
  /** The output head: cut over all ranks (false) or over attention-TP only (true, --enable-dp-lm-head). */
  readonly dpLmHead: boolean
  /** Physical experts a layer; more than the logical ones when some are replicated. */
  readonly physicalExperts: number
  /** Some logical expert has more than one replica somewhere. */
  readonly replicated: boolean
  /** Rows a dispatch of this variant brings at most; 0 without. */
  readonly maxReceived: number
  /** Logical expert of each of this rank's slots, in a layer; null: the node's one stack of all logical experts serves all ranks. */
  readonly ownExperts: ((layer: number) => readonly number[]) | null
}
