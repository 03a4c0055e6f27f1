// The words of expert-parallel load balancing as plain data: counts, a cluster, a placement, and the contract of an
// algorithm. Everything here is frozen after it is made and holds no behaviour, so it can be printed, compared between
// ranks and sent between threads. Not here: files (formats/expert-load), live migration (the engine).

/** Tokens routed to each logical expert: `data` is [steps][layers][experts], row-major. Finite and non-negative. */
export interface Counts {
  readonly steps: number
  readonly layers: number
  readonly experts: number
  readonly data: Float64Array
}

/** Where experts may live. GPU g owns `slotsPerGpu[g]` consecutive physical experts, after those of GPU g - 1. */
export interface Cluster {
  readonly gpus: number
  /** Slots of each GPU; may differ. Their sum is the number of physical experts. */
  readonly slotsPerGpu: readonly number[]
  /** Node index of each GPU, 0-based and ascending. */
  readonly nodeOfGpu: readonly number[]
  /** Ascending indices of GPUs that hold nothing that counts. */
  readonly dead: readonly number[]
}

/**
 * Which logical expert sits in which slot, per layer, and the inverses.
 * The slots of dead GPUs hold filler (expert 0) in `physicalToLogical` and appear in no inverse and no replica count.
 */
export interface Placement {
  readonly layers: number
  /** Logical experts per layer. */
  readonly logical: number
  /** Slots per layer (all GPUs, dead ones included). */
  readonly physical: number
  readonly cluster: Cluster
  /** [layers][physical] logical id of every slot. */
  readonly physicalToLogical: Int32Array
  /** [layers][logical][maxReplicas] slots of every logical expert by replica rank, padded with -1. */
  readonly logicalToPhysical: Int32Array
  readonly maxReplicas: number
  /** [layers][logical] number of live replicas. */
  readonly replicaCounts: Int32Array
  /** Grows with every plan that is put into effect; 0 for the first. */
  readonly version: number
}

/** What an algorithm is given. Algorithms that need less ignore the rest. */
export interface BalancingInput {
  readonly counts: Counts
  readonly cluster: Cluster
  /** Expert groups of group-limited routing; absent or 1 when the model has none. */
  readonly groups?: number
  /** The placement in effect; `switchyard` weighs moves against it. */
  readonly current?: Placement
  /** Price of moving experts and of traffic between nodes (see `switchyard`). 0 = peak load only. */
  readonly lambda?: number
  /** Weight of the share of traffic that crosses nodes, beside the share of slots that move. */
  readonly linkWeight?: number
  /** Told how far planning has come, layer by layer; only slow algorithms tell. */
  readonly progress?: (done: number, total: number, what: string) => void
}

/** How good a placement is for given counts: all arrays are [layers]; loads in tokens summed over the counts' steps. */
export interface LayerQuality {
  /** Peak load over live GPUs. */
  readonly peak: Float64Array
  /** Mean load over live GPUs. */
  readonly mean: Float64Array
  /** (mean + 1e-5) / (max + 1e-5). */
  readonly balancedness: Float64Array
  /** No placement on this cluster has a smaller peak when replicas share a load evenly. */
  readonly lowerBound: Float64Array
}

export interface BalancingResult {
  /** The algorithm that made it; for `auto`, the one that was picked. */
  readonly algorithm: AlgorithmName
  readonly placement: Placement
}

/** The public algorithms by SGLang's names, and our own. */
export type AlgorithmName =
  | 'deepseek'
  | 'deepseek_hierarchical'
  | 'deepseek_vec'
  | 'deepseek_vec_hierarchical'
  | 'elasticity_aware'
  | 'elasticity_aware_hierarchical'
  | 'switchyard'

/** What a user may ask for. */
export type AlgorithmChoice = AlgorithmName | 'auto'

/** A pure function from counts to a placement. Throws EplbError when it cannot serve the sizes, never a bad plan. */
export interface BalancingAlgorithm {
  readonly name: AlgorithmChoice
  /** One sentence for help texts. */
  readonly summary: string
  plan(input: BalancingInput): BalancingResult
}

export type MoveKind = 'unchanged' | 'same-gpu' | 'free-rider' | 'same-node' | 'cross-node'

/** What one slot needs in a migration. */
export interface SlotMove {
  readonly layer: number
  /** Destination slot and the GPU that owns it. */
  readonly slot: number
  readonly gpu: number
  readonly logical: number
  readonly kind: MoveKind
  /**
   * Sending GPU for same-node and cross-node (-1: no live GPU has it); a slot of the same GPU for same-gpu (where it was) and
   * free-rider (which receives it); null for unchanged.
   */
  readonly source: number | null
}

/** Slots per kind of move; `moves` = same-node + cross-node, the experts that travel between GPUs. */
export interface MoveTotals {
  readonly unchanged: number
  readonly sameGpu: number
  readonly freeRider: number
  readonly sameNode: number
  readonly crossNode: number
  readonly moves: number
}

/** The difference of two placements of the same sizes. */
export interface PlacementDiff {
  readonly slots: readonly SlotMove[]
  readonly totals: MoveTotals
  /** Experts each GPU receives from other GPUs, all layers. */
  readonly receivedPerGpu: readonly number[]
  /** Experts each GPU sends to other GPUs, all layers. */
  readonly sentPerGpu: readonly number[]
}

/**
 * Expected traffic between nodes, as shares of all routed (token, expert) pairs: sources are spread over live GPUs evenly;
 * a token stays in its node when the node holds the expert, else it picks among all replicas evenly.
 */
export interface LinkLoad {
  /** Share of pairs that leave their node, over all layers. */
  readonly crossing: number
  /** Share that enters each node, over all layers. */
  readonly ingress: readonly number[]
  /** Share that leaves each node. */
  readonly egress: readonly number[]
}
