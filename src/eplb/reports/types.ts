// What the commands print and draw, as plain data (arrays of numbers, no typed arrays): JSON.stringify of any report is its
// --json output. Not here: how a report is computed, or how it looks.
import type { AlgorithmChoice, AlgorithmName, LinkLoad, MoveTotals } from '../types.js'

/** Milliseconds from any origin; the caller owns the clock. */
export type Milliseconds = () => number

/** Told how far long work has come. */
export type Progress = (done: number, total: number, what: string) => void

export interface Sizes {
  readonly steps: number
  readonly layers: number
  readonly logical: number
  readonly physical: number
  readonly gpus: number
  readonly nodes: number
  readonly dead: readonly number[]
  readonly slotsPerGpu: readonly number[]
}

/** Quality of a placement for the given counts. Means over layers leave out layers without load (dense layers). */
export interface QualityReport {
  /** Mean of the layers' balancedness. */
  readonly balancedness: number
  readonly balancednessPerLayer: readonly number[]
  readonly peakPerLayer: readonly number[]
  readonly meanPerLayer: readonly number[]
  readonly lowerBoundPerLayer: readonly number[]
  /** Mean over layers of peak / lower bound: 1 = proved optimal. */
  readonly peakOverBound: number
  /** [layers][gpus] load of every GPU, for heat maps. */
  readonly gpuLoad: readonly (readonly number[])[]
}

export interface MoveReport extends MoveTotals {
  readonly bytes: number | null
  readonly receivedPerGpu: readonly number[]
  readonly sentPerGpu: readonly number[]
}

export interface PlanReport {
  readonly algorithm: AlgorithmName
  readonly asked: AlgorithmChoice
  readonly lambda: number
  readonly sizes: Sizes
  readonly before: QualityReport
  /** The placement `before` describes. */
  readonly beforeIs: 'current' | 'trivial'
  /**
   * Balancedness of the trivial placement without the redundant slots, which is what runs before any are bought. Redundant
   * slots placed trivially can be worse than none. Null: nothing is redundant, the experts do not divide over the GPUs,
   * a GPU is down, or a current placement is known.
   */
  readonly withoutRedundant: number | null
  readonly after: QualityReport
  /** Against the current placement; null when there is none. */
  readonly moves: MoveReport | null
  readonly links: LinkLoad
  /** Experts of each layer with the most replicas, heaviest first: at most 8. */
  readonly replicated: readonly (readonly { readonly expert: number; readonly replicas: number }[])[]
  readonly milliseconds: number
}

export interface CompareRow {
  readonly algorithm: AlgorithmName
  /** Why the algorithm refuses these sizes, with the remedy; null when it planned. */
  readonly refused: { readonly code: string; readonly message: string; readonly remedy: string } | null
  readonly after: QualityReport | null
  /** Moves from `before`'s placement: as the algorithm numbered its GPUs, and after optimal relabelling. */
  readonly moves: MoveReport | null
  readonly movesRelabelled: MoveReport | null
  readonly links: LinkLoad | null
  readonly milliseconds: number | null
}

export interface CompareReport {
  readonly sizes: Sizes
  readonly before: QualityReport
  readonly beforeIs: 'current' | 'trivial'
  /** As in `PlanReport`. */
  readonly withoutRedundant: number | null
  readonly lambda: number
  readonly rows: readonly CompareRow[]
  /** Best balancedness among the rows. */
  readonly best: AlgorithmName
}

/** One policy under one threshold over a recorded load. */
export interface ReplayRun {
  /** none: the trivial placement (slot p holds expert p mod E), never changed. */
  readonly algorithm: AlgorithmName | 'none'
  /** Planned at the first tick and never again. */
  readonly once: boolean
  /** Rebalance only when the window's balancedness is below it; 1 = at every tick. */
  readonly threshold: number
  /** Balancedness at every step, mean over loaded layers. */
  readonly balancedness: readonly number[]
  readonly meanBalancedness: number
  /** Mean balancedness less that of the trivial placement. */
  readonly gain: number
  /** Mean balancedness less that of the run that plans once; null when no policy takes the sizes. */
  readonly gainOverOnce: number | null
  /** Steps after which a new placement took effect. */
  readonly rebalances: readonly {
    readonly step: number
    readonly before: number
    readonly planned: number
    readonly moves: number
    readonly bytes: number | null
    readonly milliseconds: number
  }[]
  readonly moves: number
  readonly bytes: number | null
  /** Set when the algorithm refuses the sizes. */
  readonly refused: string | null
}

export interface ReplayReport {
  readonly sizes: Sizes
  readonly window: number
  readonly interval: number
  readonly lambda: number
  readonly runs: readonly ReplayRun[]
}

export interface SweepRow {
  readonly gpus: number
  readonly nodes: number
  /** Slots without redundancy (the smallest multiple of gpus that holds every expert) and with it. */
  readonly physicalWithout: number
  readonly physicalWith: number
  /** Utilisation = mean balancedness. */
  readonly without: number
  readonly with: readonly { readonly algorithm: AlgorithmName; readonly utilisation: number | null }[]
}

export interface SweepReport {
  readonly steps: number
  readonly layers: number
  readonly logical: number
  readonly redundant: number
  readonly rows: readonly SweepRow[]
}

interface Timed {
  readonly clock: Milliseconds
  readonly progress?: Progress
  /** Bytes of one expert of one layer; null in reports when absent. */
  readonly expertBytes?: number
}

export interface PlanOptions extends Timed {
  readonly algorithm: AlgorithmChoice
}

export interface CompareOptions extends Timed {
  /** All, when absent. */
  readonly algorithms?: readonly AlgorithmName[]
}

export interface ReplayOptions extends Timed {
  /** Steps that a plan looks back; 20 when absent. */
  readonly window?: number
  /** Steps between two ticks; 20 when absent. */
  readonly interval?: number
  /** deepseek and switchyard when absent. 'none' is always run, and `switchyard` (else the first that can) once. */
  readonly policies?: readonly AlgorithmName[]
  /** [1] when absent: rebalance at every tick. */
  readonly thresholds?: readonly number[]
  readonly groups?: number
  readonly lambda?: number
  readonly linkWeight?: number
}

export interface SweepOptions {
  readonly gpus: readonly number[]
  /** GPUs of a node; the last node may have fewer. 8 when absent. */
  readonly gpusPerNode?: number
  /** Redundant experts; rounded up until the slots divide over the GPUs. */
  readonly redundant?: number
  readonly groups?: number
  /** auto's pick and switchyard when absent. */
  readonly algorithms?: readonly AlgorithmName[]
  readonly progress?: Progress
}
