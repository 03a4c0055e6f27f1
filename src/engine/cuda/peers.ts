// A rank on a GPU among others: how its launches and theirs keep out of each other's way, and what became of those that waited in vain.
import { type Communicator, ExpertBufferError } from '../../comm/index.js'
import type { PeerRank } from '../../comm/peer/index.js'
import type { BoundOperation, PeerExchange } from '../../program/index.js'
import type { Step } from '../../runtime/wait.js'

export interface CudaPeers {
  readonly rank: PeerRank
  readonly exchange: PeerExchange
  /** All ranks, on the host. */
  readonly group: Communicator
  /**
   * Ranks meet on the host around every launch that waits for peers, and capture no graphs. Needed where ranks share a GPU or a thread:
   * the driver may wait for all kernels of a GPU before it loads another one, and one of those might wait for the rank that loads.
   */
  readonly lockstep: boolean
}

const WAITING: readonly BoundOperation['kind'][] = ['dispatch_send', 'combine_send']

/** Whether its kernel waits for other ranks. */
export const waitsForPeers = ({ kind }: BoundOperation): boolean => WAITING.includes(kind)

/** Part of an exchange: it runs also where this rank has no rows. */
export const isExchange = ({ kind }: BoundOperation): boolean =>
  kind.startsWith('dispatch') || kind.startsWith('combine_')

export function* meet({ group }: CudaPeers, { index, layer }: BoundOperation): Step<void> {
  yield* group.barrier({ operation: index, layer, label: 'launches that wait for other ranks' })
}

/** @throws ExpertBufferError SY_EP_PEER_SILENT naming the rank that was waited for in vain, and what it should have done */
export function checkPeers({ fault, member }: Pick<PeerRank, 'fault' | 'member'>): void {
  if (!fault) return
  const { peer, phase, epoch, seen, place } = fault
  throw new ExpertBufferError('SY_EP_PEER_SILENT', { rank: member, peer, phase, epoch, seen, place })
}
