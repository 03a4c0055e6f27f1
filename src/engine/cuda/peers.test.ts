// What becomes of a wait that took too long, and which operations wait.
import { describe, expect, it } from 'vitest'
import type { BoundOperation } from '../../program/index.js'
import { checkPeers, isExchange, waitsForPeers } from './peers.js'

describe('ranks on GPUs', () => {
  it('a silent peer is named, with what was waited for', () => {
    const fault = { phase: 'partial rows', peer: 1, parity: 0, epoch: 7, seen: 6, place: 3 }
    expect(() => checkPeers({ fault, member: 0 })).toThrow(
      'rank 0 waited in vain on its GPU for partial rows of rank 1 (place 3, operation 7, seen 6)',
    )
    expect(() => checkPeers({ fault: null, member: 0 })).not.toThrow()
  })

  it('sending waits for peers; the whole exchange runs without rows of its own', () => {
    const of = (kind: BoundOperation['kind']): BoundOperation => {
      return { kind, rows: 'tokens', layer: 0, index: 0, how: 'kernel', kernel: () => {} }
    }
    const exchange = [
      'dispatch_send',
      'dispatch_receive',
      'dispatched_experts',
      'combine_send',
      'combine_receive',
    ] as const
    expect(exchange.map(kind => isExchange(of(kind)))).toEqual([true, true, true, true, true])
    expect(exchange.map(kind => waitsForPeers(of(kind)))).toEqual([true, false, false, true, false])
    expect([isExchange(of('linear')), waitsForPeers(of('linear'))]).toEqual([false, false])
  })
})
