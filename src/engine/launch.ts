// What a rank is started with: plain data and spans of lent memory, so that it can be posted to a worker thread.

import type { ExpertBufferConfig, ExpertBufferMemory } from '../comm/index.js'
import type { ErrorFields } from '../config/errors.js'
import type { KernelKind, WasmNode } from '../device/cpu/index.js'
import type { MemorySpan } from '../device/memory.js'
import type { ActivationDtype } from '../device/ops.js'
import type { LoadedWeights } from '../formats/weight-spec.js'
import type { DpPaddingMode } from '../layers/index.js'
import type { ProgramLimits, ProgramVariant } from '../models/index.js'
import type { ParallelSizes, RankCoordinates } from '../parallel/index.js'
import type { IdTables, Program } from '../program/index.js'
import type { DispatchRule, RankRequest, RequestProgress, SchedulerLimits } from '../scheduler/index.js'
import type { StepSlot } from './cuda/staging.js'
import type { Drill } from './drill.js'
import type { InputBlock, RankGroups } from './rank-memory.js'
import type { DpRankState } from './request.js'
import type { RequestLogprobs } from './step-logprobs.js'

/** Where a rank computes. All ranks of a node run the same kernels: what the node's device chose. */
export type RankDevice = CpuRankDevice | CudaRankDevice

export interface CpuRankDevice {
  readonly kind: 'cpu'
  readonly kernels: KernelKind
  /** The module and the one memory of `wasm` kernels, else null. */
  readonly wasmNode: WasmNode | null
}

export interface CudaRankDevice {
  readonly kind: 'cuda'
  readonly ordinal: number
  readonly activation: ActivationDtype
  /** Batch sizes of captured decode steps, ascending. */
  readonly graphBatches: readonly number[]
  /** false: such steps are padded and launched kernel by kernel, the reference of the captured ones. */
  readonly capture: boolean
  /** Inputs of a step in the GPU's memory. */
  readonly inputs: InputBlock
  /** Pinned memory of the steps that may be on their way at once. */
  readonly slots: readonly StepSlot[]
  /** Pinned memory for rows of logits: [logit rows, vocab]. */
  readonly logits: MemorySpan
  /** Pinned memory for word of a peer that was waited for in vain. */
  readonly peerFault: MemorySpan
  /** The ranks that it exchanges rows with over peer memory; left out for one rank. */
  readonly peers?: PeerGroup
}

/** Expert parallelism between GPUs: equal on all ranks, a member is a rank. */
export interface PeerGroup {
  readonly config: ExpertBufferConfig
  /** Where each rank's exchange region begins. */
  readonly bases: readonly number[]
  /** Ranks that share the GPU of each rank, itself included. */
  readonly ranksOnGpu: readonly number[]
}

export interface RankLaunch {
  readonly sizes: ParallelSizes
  readonly coordinates: RankCoordinates
  readonly control: SharedArrayBuffer
  readonly groups: RankGroups
  readonly variants: readonly ProgramVariant[]
  /** One for each variant. */
  readonly programs: readonly Program[]
  readonly weights: LoadedWeights
  /** Memory of every buffer of each program. */
  readonly buffers: readonly Readonly<Record<string, MemorySpan>>[]
  readonly ropeTables: Readonly<Record<string, MemorySpan>>
  readonly idTables: IdTables
  readonly limits: ProgramLimits
  readonly chunkedPrefillSize: number
  /** Steps a prompt may wait for other DP ranks' prompts; 0 = the delayer is off. */
  readonly prefillDelayPasses: number
  readonly scheduling: Pick<SchedulerLimits, 'prefixCache' | 'conservativeness' | 'prefillDecodeInterval'>
  readonly device: RankDevice
  /** Steps are formed before the last one's results are known. */
  readonly overlap: boolean
  /** Experts drawn evenly instead of routed, for measurements. */
  readonly fakeRouting: boolean
  readonly configHash: number
  /** A padding mode for every step, or null for the rule. */
  readonly forcedPadding: DpPaddingMode | null
  /** null without an all-to-all backend. */
  readonly expertBuffer: ExpertBufferMemory | null
  /** How an all-to-all chooses its mode, or null without one. */
  readonly dispatchRule: DispatchRule | null
  /** The ring that the rank's trace goes into, or null. */
  readonly trace: MemorySpan | null
  /** A failure to rehearse, or null. */
  readonly drill: Drill | null
  /** Decides whether waits spin. */
  readonly cores: number
}

/** Main thread → rank. */
export type RankCommand =
  | { readonly kind: 'request'; readonly request: RankRequest }
  | { readonly kind: 'abort'; readonly id: string }
  | { readonly kind: 'pause' }
  | { readonly kind: 'continue' }
  | { readonly kind: 'flush_cache' }
  | { readonly kind: 'stop' }

/** Rank → main thread. */
export type RankReport =
  | { readonly kind: 'ready'; readonly kernels: string; readonly queue: number | null }
  | {
      readonly kind: 'step'
      readonly progress: readonly RequestProgress[]
      /** Rows of logits somebody asked for, else null. */
      readonly logits: Float32Array | null
      /** Log-probabilities for requests that asked, else null. */
      readonly logprobs: readonly RequestLogprobs[] | null
      readonly state: DpRankState
    }
  | { readonly kind: 'flushed'; readonly pages: number }
  | { readonly kind: 'stopped' }
  | { readonly kind: 'failed'; readonly error: RankFailure }

/** An error in a form that crosses threads. */
export interface RankFailure {
  readonly code: string
  readonly message: string
  readonly remedy: string
  /** Of an error with a code: rank, layer, operation and whatever else it names. */
  readonly fields: ErrorFields
  readonly stack: string
}

/** How a rank gets its commands and sends its reports; the worker uses message ports, tests use arrays. */
export interface RankPort {
  /** The next command, or undefined. Never waits. */
  receive(): RankCommand | undefined
  send(report: RankReport): void
}
