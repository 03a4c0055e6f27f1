// What the main thread asks the device of its node: how weights are packed, memory to lend, and what ranks are told so that
// they find the same device. Engine code above this line does not know which device it is.
import { freemem, totalmem } from 'node:os'
import type { MapFileRange } from '../device/cpu/index.js'
import type { MemoryLender, MemorySpan } from '../device/memory.js'
import type { ActivationDtype, Packer } from '../device/ops.js'
import type { Program } from '../program/index.js'
import type { RankDevice } from './launch.js'

/** What planning needs of a device. */
export interface PlanningDevice {
  readonly packer: Packer
  /** Bytes that lenders of this device may lend in all; infinite where only the machine limits it. */
  readonly memoryLimit: number
  /** Refuses early what no lender could lend. */
  requireMemory(bytes: number, purpose: string): void
  /** A device with memory of its own. Left out: ranks compute in the machine's memory, in f32. */
  readonly accelerator?: Accelerator
}

export interface Accelerator {
  /** "cuda": for messages. */
  readonly kind: string
  memory(): { readonly free: number; readonly total: number }
  /** Share of the memory that weights and KV cache take unless --mem-fraction-static says otherwise. */
  readonly fractionStatic: number
  /** Number of the GPU that a rank computes on. Left out: one for all. */
  gpuOfRank?(rank: number): number
}

export interface NodeDevice extends PlanningDevice {
  readonly name: string
  /** Something the user should know: slow kernels. */
  readonly warning: string | null
  readonly mapFileRange: MapFileRange
  /** Memory that ranks compute in. @param reserve bytes that will be asked for, taken at once where that helps */
  createLender(reserve?: number): MemoryLender
  /** Takes back all that a lender has lent, where a device gives memory back at all. Nobody may use it any more. */
  reclaim(lender: MemoryLender): void
  /** Memory that main thread and ranks both read and write; `computing` serves where that is the same. */
  hostLender(computing: MemoryLender): MemoryLender
  /** Puts bytes at the beginning of a lent span. */
  write(span: MemorySpan, bytes: Uint8Array): void
  /** Returns when everything packed and written so far is where it belongs. */
  loaded(): void
  /** What a rank needs to compute on this device, and where its inputs lie if the device has a place of its own for them. */
  forRank(program: Program, lenders: RankLenders, plan: PlannedSteps): PlacedRank
  /** The device of a rank, where ranks have memory of their own. Left out: this one for all. */
  placeOf?(rank: number): NodeDevice
  /** Whether a rank that has ended left work behind on its queue (`StepRunner.queue`), which a close would wait for. */
  isBusy?(queue: number): boolean
  /** Ends the process without waiting for work on the device. */
  exitProcess?(code: number): void
  /** After the last rank has ended. Closes the devices of all ranks. */
  close(): void
}

export interface RankLenders {
  /** Memory that the rank computes in. */
  readonly lender: MemoryLender
  /** Memory that it shares with the main thread. */
  readonly host: MemoryLender
}

/** What of a plan a rank's device must know. */
export interface PlannedSteps {
  readonly activation: ActivationDtype
  readonly graphBatches: readonly number[]
  readonly options: { readonly uncaptured?: boolean }
}

export interface PlacedRank {
  readonly device: RankDevice
  readonly inputs?: Readonly<Record<string, MemorySpan>>
}

/** Memory this process can still take: the machine's, or its container's. */
export function availableMemory(): number {
  const limit = process.constrainedMemory?.() ?? 0
  const free = freemem()
  return limit > 0 && limit < 2 ** 50 ? Math.min(free, Math.max(0, limit - process.memoryUsage.rss())) : free
}

export const machineMemory = (): number => totalmem()
