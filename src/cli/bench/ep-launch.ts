// What `bench ep` hands to its workers, and what they hand back. Plain data.
import type { ExpertBufferMemory, ShmGroup } from '../../comm/index.js'
import type { MemorySpan } from '../../device/memory.js'

/** One timed thing. `copy` moves the bytes of a dispatch and its combine inside the rank, the faster of two ways counts. */
export const PHASES = ['copy streaming', 'copy cached', 'dispatch', 'combine', 'barrier'] as const
export type Phase = (typeof PHASES)[number]

export interface EpWork {
  readonly name: string
  readonly mode: 'normal' | 'lowLatency'
  readonly buffer: ExpertBufferMemory
  readonly tokens: number
  /** Times the phases run in each round; the times of a round are their medians. */
  readonly times: number
  /** Bytes that a rank moves in a dispatch and in a combine. */
  readonly copyBytes: readonly [number, number]
  /** i32 and f32 [tokens, topK]. */
  readonly ids: MemorySpan
  readonly weights: MemorySpan
}

export interface EpLaunch {
  readonly rank: number
  readonly ranks: number
  readonly cores: number
  readonly rounds: number
  readonly hidden: number
  readonly topK: number
  readonly kernels: 'auto' | 'native' | 'reference'
  readonly control: SharedArrayBuffer
  readonly group: ShmGroup
  readonly works: readonly EpWork[]
  /** f32 [tokens, hidden], and where combined rows go. */
  readonly x: MemorySpan
  readonly out: MemorySpan
  readonly copyFrom: MemorySpan
  readonly copyTo: MemorySpan
}

export interface EpMeasured {
  readonly rank: number
  /** Name of the wire kernels. */
  readonly kernels: string
  /** [works][phases][rounds · times]: begin and end in milliseconds on the machine's clock. */
  readonly spans: readonly (readonly (readonly (readonly [number, number])[])[])[]
  readonly ringStalls: number
}
