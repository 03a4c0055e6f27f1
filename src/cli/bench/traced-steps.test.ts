// What a benchmark takes from a trace of ranks on GPUs: the steps in which all streams run, of the rank with most to do.
import { describe, expect, it } from 'vitest'
import type { StepEvent, Trace, TracedRank } from '../../trace/index.js'
import { tracedSteps } from './traced-steps.js'

const KINDS = ['attention', 'dispatch_send', 'attention'] as const
const phases = ['forming', 'voting', 'forward', 'committing']

/** A step of 100 ms: 2 ms of forming, 1 of voting and 3 of waiting for a vote; operations of `lengths` ms from its beginning on. */
function step(number: number, own: number, lengths: readonly number[]): StepEvent {
  const start = 100 * number
  let at = start
  const operations = lengths.map((ms, operation) => {
    at += ms
    return { operation, start: at - ms, end: at, rows: own, sent: -1, received: -1 }
  })
  return {
    ...{ step: number, program: 0, start, end: start + 100, operations },
    rows: { tokens: own, padded: own, gathered: 99, slice: own, received: 0, logitRows: own, gatheredLogits: 99 },
    phases: [
      { phase: 0, start, end: start + 2 },
      { phase: 1, start: start + 2, end: start + 6 },
    ],
    waits: [{ operation: -1, peer: 1, start: start + 2, end: start + 5 }],
  }
}

const rank = (number: number, steps: readonly StepEvent[]): TracedRank => ({
  rank: number,
  name: `rank ${number}`,
  programs: [
    {
      name: '',
      operations: KINDS.map(kind => ({ kind, layer: 0, label: '', group: [], sentBy: 0, bytes: () => null })),
    },
  ],
  onDevice: true,
  events: { steps, lost: 0 },
})
const trace = (...ranks: TracedRank[]): Trace => ({ ranks, phases })

describe('a traced decode step', () => {
  it('counts where the streams of all ranks together are the batch, however they are spread', () => {
    const rows = [
      [300, 2],
      [15, 16],
      [15, 17],
      [16, 16],
      [17, 15],
    ] as const
    const steps = (i: 0 | 1) => rows.map((own, n) => step(n, own[i], [10, 20, 30]))
    const found = tracedSteps(trace(rank(0, steps(0)), rank(1, steps(1))), 32, 1)!
    expect(found.kinds).toEqual([
      { kind: 'attention', calls: 2, us: 40_000 },
      { kind: 'dispatch_send', calls: 1, us: 20_000 },
    ])
    // Two steps of 60 ms, 100 ms apart.
    expect(found.gpuIdleShare).toBeCloseTo(1 - 120 / 160)
    expect(found.hostUs).toBeCloseTo(3000)
  })

  it('is that of the rank with most work of its own, not of the one that waits longest in a kernel', () => {
    const waiting = [0, 1, 2].map(n => step(n, 0, [1, 90, 1]))
    const busy = [0, 1, 2].map(n => step(n, 1, [20, 10, 20]))
    for (const ranks of [
      [rank(0, waiting), rank(1, busy)],
      [rank(0, busy), rank(1, waiting)],
    ]) {
      const found = tracedSteps(trace(...ranks), 1, 0)!
      expect(found.kinds[0]).toEqual({ kind: 'attention', calls: 2, us: 40_000 })
      expect(found.rank).toBe(ranks[0]!.events.steps === busy ? 0 : 1)
    }
  })

  it('is not that of a rank without rows, however slowly it queued its launches', () => {
    const idle = [0, 1].map(n => step(n, 0, [50, 1, 40]))
    const busy = [0, 1].map(n => step(n, 1, [20, 10, 20]))
    expect(tracedSteps(trace(rank(0, busy), rank(1, idle)), 1, 0)!.rank).toBe(0)
    expect(tracedSteps(trace(rank(0, idle), rank(1, busy)), 1, 0)!.rank).toBe(1)
  })

  it('is not there when the streams never ran together', () => {
    expect(tracedSteps(trace(rank(0, [step(0, 3, [1, 1, 1])])), 4, 0)).toBeNull()
    expect(tracedSteps(trace(rank(0, [step(0, 4, [])])), 4, 0)).toBeNull()
    expect(tracedSteps(trace(rank(0, [step(0, 4, [1])])), 4, 1)).toBeNull()
  })
})
