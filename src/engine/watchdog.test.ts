// Whom the watchdog blames when ranks wait for each other.
import { describe, expect, it } from 'vitest'
import type { Phase, RankStatus } from '../runtime/control.js'
import { forgive, judge, type Movement, observe } from './watchdog.js'

const status = (rank: number, waitingFor: number, phase: Phase = 'forward', beat = 1): RankStatus => ({
  rank,
  phase,
  step: 1,
  layer: 0,
  program: 0,
  operation: 0,
  waitingFor,
  beat,
})
const limits = { stallMs: 1000, waitMs: 100 }
const stillSince = (count: number, since: number): Movement[] =>
  Array.from({ length: count }, () => ({ beat: 1, since }))

describe('watchdog', () => {
  it('blames the rank that is awaited and does not wait, not those that wait', () => {
    const statuses = [status(0, 1), status(1, 2), status(2, -1), status(3, 2)]
    const verdict = judge(statuses, stillSince(4, 0), limits, 200)
    expect(verdict).toEqual({ rank: 2, waiting: [0, 1, 3], forMs: 200 })
  })

  it('lets a rank compute longer than it lets others wait, when nobody waits', () => {
    expect(judge([status(0, -1)], stillSince(1, 0), limits, 900)).toBeNull()
    expect(judge([status(0, -1)], stillSince(1, 0), limits, 1100)).toMatchObject({ rank: 0, waiting: [] })
  })

  it('leaves idle and stopped ranks alone, but blames an idle one that is awaited', () => {
    expect(judge([status(0, -1, 'idle'), status(1, -1, 'stopped')], stillSince(2, 0), limits, 1e6)).toBeNull()
    expect(judge([status(0, 1), status(1, -1, 'idle')], stillSince(2, 0), limits, 200)).toMatchObject({ rank: 1 })
  })

  it('ends on a ring of waits', () => {
    expect(judge([status(0, 1), status(1, 0)], stillSince(2, 0), limits, 200)).not.toBeNull()
  })

  it('forgives a rank that has moved since', () => {
    const before = observe([status(0, 1)], [], 0)
    const after = observe([status(0, 1, 'forward', 2)], before, 150)
    expect(judge([status(0, 1, 'forward', 2)], after, limits, 200)).toBeNull()
    expect(observe([status(0, 1, 'forward', 2)], after, 500)).toEqual(after)
  })

  it('gives ranks that start as long as they may compute, and lets the others wait for them', () => {
    const statuses = [status(0, 1, 'voting'), status(1, -1, 'starting', 0)]
    const later = observe(statuses, observe(statuses, [], 0), 900)
    expect(judge(statuses, later, limits, 950)).toBeNull()
    expect(judge(statuses, observe(statuses, later, 1100), limits, 1100)).toMatchObject({ rank: 1, forMs: 1100 })
  })

  it('does not count the time in which the whole process stood still', () => {
    const statuses = [status(0, 1), status(1, -1)]
    const seen = observe(statuses, [], 0)
    expect(judge(statuses, seen, limits, 5000)).toMatchObject({ rank: 1 })
    expect(judge(statuses, forgive(seen, 4950), limits, 5000)).toBeNull()
  })
})
