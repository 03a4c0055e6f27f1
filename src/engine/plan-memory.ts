// What is left of a device's memory for KV caches once weights and the ranks' expert buffers have their places.
import { type ExpertBufferConfig, expertBufferBytes } from '../comm/index.js'
import { layOutRegion } from '../comm/peer/index.js'
import { type ActivationDtype, elementBytes } from '../device/ops.js'
import type { ModelProgram } from '../models/index.js'
import { planArena } from '../program/index.js'
import { EngineError } from './errors.js'
import { availableMemory, machineMemory, type PlanningDevice } from './node-device.js'
import { type MemorySituation, showBytes } from './sizing.js'

/** What a plan takes before its KV caches. */
export interface PlannedMemory {
  /** Of the place that holds most. */
  readonly weightBytes: number
  /** KV caches in one memory: ranks of a place. */
  readonly pools: number
  readonly expertBuffer: ExpertBufferConfig | null
  /** Arenas of the ranks of a place. */
  readonly arenaBytes: number
  readonly activation: ActivationDtype
}

/** What the node lends to the expert buffers of all ranks. */
export const bytesOfExpertBuffers = (config: ExpertBufferConfig): number =>
  config.expertsOfMember
    .flatMap((_, member) => expertBufferBytes(config, member))
    .reduce((n, part) => n + part.bytes, 0)

/** What the arenas of a place's ranks take together where that is most. A rank has one for all of its programs. */
export const mostArenaBytes = (
  programs: readonly (readonly ModelProgram[])[],
  places: readonly { readonly ranks: readonly number[] }[],
  activation: ActivationDtype,
): number => {
  const ofRank = (rank: number) => Math.max(...programs[rank]!.map(p => planArena(p.program, activation).bytes))
  return Math.max(...places.map(({ ranks }) => ranks.reduce((sum, rank) => sum + ofRank(rank), 0)))
}

/**
 * Expert buffers lie where ranks compute.
 * @throws EngineError SY_ENGINE_NOT_ENOUGH_MEMORY when expert buffers leave nothing
 */
export function memorySituation(
  device: PlanningDevice,
  { weightBytes, pools, expertBuffer, arenaBytes, activation }: PlannedMemory,
): MemorySituation {
  const common = { weights: weightBytes, pools, elementBytes: elementBytes(activation) }
  if (device.accelerator) {
    const { fractionStatic } = device.accelerator
    const { free, total } = device.accelerator.memory()
    const regions = expertBuffer ? layOutRegion(expertBuffer).bytes * pools : 0
    return { ...common, free: free - weightBytes - regions, total, fractionStatic, arenas: arenaBytes }
  }
  const left = Math.min(availableMemory(), device.memoryLimit) - weightBytes
  const expertBuffers = expertBuffer ? bytesOfExpertBuffers(expertBuffer) : 0
  if (expertBuffers > 0 && expertBuffers >= left)
    throw new EngineError('SY_ENGINE_NOT_ENOUGH_MEMORY', {
      what: 'dispatch between ranks (--moe-a2a-backend deepep)',
      needed: showBytes(expertBuffers),
      available: showBytes(Math.max(0, left)),
      remedy: 'Use a smaller --chunked-prefill-size or --max-running-requests.',
    })
  return { ...common, free: left - expertBuffers, total: Math.min(machineMemory(), device.memoryLimit) }
}
