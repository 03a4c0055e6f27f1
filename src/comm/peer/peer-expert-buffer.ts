// ExpertBuffer between GPUs of one process: rows travel over peer-mapped memory by kernels, announcements are compared in host memory.
import type { MemoryLender, MemorySpan } from '../../device/memory.js'
import { ExpertBufferError } from '../errors.js'
import type { ExpertBufferConfig } from '../expert-buffer-config.js'
import { GuardedExpertBuffer } from '../guarded-expert-buffer.js'
import { COUNTS_OFFSET } from '../shm/ep/signals.js'
import { PeerCore, type PeerCoreOptions } from './peer-core.js'
import { PeerLowLatencyMode } from './peer-low-latency.js'
import { PeerNormalMode } from './peer-normal.js'
import { MAX_PEERS } from './region.js'
import { checkSharedMemory } from './shared-memory.js'

/**
 * What kernels take: rows in pieces of 16 elements, wires f32, bf16 and (to the experts) fp8, straight to their places, and no more
 * tokens than a block can count.
 * @throws ExpertBufferError SY_EP_BAD_CONFIG
 */
export function checkPeerConfig(config: ExpertBufferConfig): void {
  const need = (holds: boolean, what: string, value: unknown, rule: string) => {
    if (!holds) throw new ExpertBufferError('SY_EP_BAD_CONFIG', { what, value, rule })
  }
  const { hidden, expertsOfMember, normal: n, lowLatency: l } = config
  need(hidden % 16 === 0, 'hidden', hidden, 'a multiple of 16 on GPUs')
  need(expertsOfMember.length <= MAX_PEERS, 'members', expertsOfMember.length, `at most ${MAX_PEERS} on GPUs`)
  need(!n || n.transit === 'direct', 'transit', 'rings', 'direct on GPUs')
  for (const wire of [n?.dispatchWire, l?.dispatchWire]) need(wire !== 'int8', 'wire', wire, 'f32, bf16 or fp8 on GPUs')
  for (const wire of [n?.combineWire, l?.combineWire])
    need(!wire || wire === 'f32' || wire === 'bf16', 'combine wire', wire, 'f32 or bf16 on GPUs')
  checkSharedMemory(config)
}

/** Host memory in which members announce what they do. */
export const lendSignals = (lender: MemoryLender, members: number): MemorySpan[] =>
  Array.from({ length: members }, () => lender.lend(COUNTS_OFFSET, 'signals of expert parallelism'))

export class PeerExpertBuffer extends GuardedExpertBuffer implements Disposable {
  readonly #core: PeerCore

  /** @throws ExpertBufferError SY_EP_BAD_CONFIG */
  constructor(options: PeerCoreOptions) {
    const { config } = options.peer
    checkPeerConfig(config)
    const core = new PeerCore(options)
    const { normal, lowLatency } = config
    super(
      core,
      options.ranks,
      normal ? new PeerNormalMode(core, normal) : null,
      lowLatency ? new PeerLowLatencyMode(core, lowLatency) : null,
    )
    this.#core = core
  }

  override setActive(active: readonly boolean[], generation: number): void {
    super.setActive(active, generation)
    const peer = this.#core.here()
    peer.kernels.stream.synchronize()
    peer.clearFault()
    peer.setActive(active, generation)
  }

  /** Gives its staging back. Nothing may be running. */
  [Symbol.dispose](): void {
    this.#core.dispose()
  }
}
