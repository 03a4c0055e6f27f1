// When a trace begins and which steps are in it, with ranks that look at the switch at different times.
import { describe, expect, it } from 'vitest'
import { HostMemoryLender } from '../device/memory.js'
import { lendTraceRing, TraceRecorder } from '../trace/index.js'
import type { RankLaunch } from './launch.js'
import type { ModelPlan } from './load-model.js'
import { EngineTrace } from './trace.js'

const ROWS = { tokens: 1, padded: 1, gathered: 2, slice: 1, received: 0, logitRows: 1, gatheredLogits: 2 }

/** Two ranks that step when told to. Only what a trace reads of plan and launches is there. */
function twoRanks() {
  const lender = new HostMemoryLender()
  const spans = [0, 1].map(() => lendTraceRing(lender, 200))
  const launches = spans.map((trace, rank) => ({
    trace,
    coordinates: { rank, attnDp: rank, attnTp: 0, ep: rank },
    programs: [],
    device: { kind: 'cpu' },
  })) as unknown as RankLaunch[]
  let time = 0
  const pens = spans.map(span => new TraceRecorder(span, { now: () => time++ }))
  const trace = EngineTrace.of({ variants: [] } as unknown as ModelPlan, launches)!
  const step = (rank: number, number: number, busy: boolean) => {
    pens[rank]!.step(number)
    pens[rank]!.phase(0)
    if (busy) pens[rank]!.rows(ROWS)
  }
  const steps = () => trace.read().ranks.map(r => r.events.steps.map(s => s.step))
  return { trace, step, steps }
}

describe('a trace of an engine', () => {
  it('is recording when every rank has begun a step that is recorded', () => {
    const { trace, step } = twoRanks()
    step(0, 1, false)
    trace.start()
    expect(trace.recording).toBe(false)
    step(1, 1, false)
    expect(trace.recording).toBe(false)
    step(0, 2, false)
    expect(trace.recording).toBe(true)
    trace.stop()
    step(1, 2, false)
    expect(trace.recording).toBe(false)
  })

  it('has the steps that all ranks have recorded, without idle ones at both ends', () => {
    const { trace, step, steps } = twoRanks()
    step(0, 1, true)
    trace.start()
    // Rank 1 begins the same step later, when recording is on.
    step(1, 1, true)
    for (const [number, busy] of [
      [2, false],
      [3, true],
      [4, false],
      [5, true],
      [6, false],
    ] as const)
      for (const rank of [1, 0]) step(rank, number, busy)
    expect(steps()).toEqual([
      [3, 4, 5],
      [3, 4, 5],
    ])
    step(0, 7, true)
    step(0, 8, true)
    step(1, 7, true)
    // Rank 1 has not written step 7 down yet.
    expect(steps()).toEqual([
      [3, 4, 5],
      [3, 4, 5],
    ])
  })

  it('is empty when nothing was done', () => {
    const { trace, step, steps } = twoRanks()
    trace.start()
    for (const number of [1, 2, 3]) for (const rank of [0, 1]) step(rank, number, false)
    expect(steps()).toEqual([[], []])
  })
})
