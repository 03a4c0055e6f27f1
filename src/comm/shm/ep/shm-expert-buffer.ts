// ExpertBuffer over memory that the ranks of a node share.
import type { Clock } from '../../../runtime/clock.js'
import { GuardedExpertBuffer } from '../../guarded-expert-buffer.js'
import type { WireKernels } from '../../wire/kernels.js'
import { createWireKernels } from '../../wire/native.js'
import { EpCore } from './core.js'
import { LowLatencyMode } from './low-latency.js'
import type { ExpertBufferMemory } from './memory.js'
import { NormalMode } from './normal.js'

export interface ShmExpertBufferOptions {
  /** Default: native ones where the addon loads. */
  readonly kernels?: WireKernels
  /** Measures waits; without it `waitedPerSource` stays 0. */
  readonly clock?: Clock
}

export class ShmExpertBuffer extends GuardedExpertBuffer {
  constructor(memory: ExpertBufferMemory, rank: number, options: ShmExpertBufferOptions = {}) {
    const core = new EpCore(memory, rank, options.kernels ?? createWireKernels(), options.clock)
    const { normal, lowLatency } = memory.config
    super(
      core,
      memory.ranks,
      normal ? new NormalMode(core, normal) : null,
      lowLatency ? new LowLatencyMode(core, lowLatency) : null,
    )
  }
}
