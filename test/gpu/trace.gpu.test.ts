// Traces by the GPU's own clock, of steps kernel by kernel and from graphs: no token changes, every operation has its time, in
// order, and steps do not overlap on the GPU.
import { expect, it } from 'vitest'
import { OneThreadEngine } from '../../src/engine/one-thread.js'
import { summarize } from '../../src/trace/index.js'
import { drawing, fixturePath, flagsFor, type GivenFlags } from '../engine/harness.js'
import { ONE_RANK, TWO_RANKS } from './models.js'

const requests = [drawing('a', [1, 2, 3, 4, 5], 12), drawing('b', [9, 8], 12)]

it.each([
  ['kernel by kernel', { disableCudaGraph: true }],
  ['in graphs', { cudaGraphBs: '1,2' }],
] satisfies [string, GivenFlags][])('%s', async (_, given) => {
  const flags = flagsFor(fixturePath('deepseek_v3'), { ...ONE_RANK, ...given })
  const engine = await OneThreadEngine.load(flags)
  try {
    const tokens = (traced: boolean) => {
      const clock = { now: () => performance.now() }
      const results = engine.run(requests, [0, 0], 0, traced ? { records: 100_000, clock } : undefined)
      return [...results.values()].map(r => r.tokens)
    }
    expect(tokens(true)).toEqual(tokens(false))
    tokens(true)
    const trace = engine.lastTrace!
    const [rank] = trace.ranks
    expect(rank!.onDevice).toBe(true)
    expect(rank!.events.lost).toBe(0)
    const steps = rank!.events.steps.filter(s => s.rows !== null)
    expect(steps.length).toBeGreaterThanOrEqual(12)
    let last = Number.NEGATIVE_INFINITY
    for (const { operations } of steps) {
      expect(operations.length).toBe(steps[0]!.operations.length)
      for (const [i, { operation, start, end }] of operations.entries()) {
        if (i > 0) expect(operation).toBeGreaterThan(operations[i - 1]!.operation)
        expect(start).toBeGreaterThanOrEqual(last)
        expect(end).toBeGreaterThanOrEqual(start)
        last = end
      }
    }
    const kinds = new Set(summarize(trace).kinds.map(k => k.kind))
    for (const kind of ['attention', 'experts', 'sample']) expect(kinds).toContain(kind)
    const idle = summarize(trace).deviceIdleShare!
    expect(idle).toBeGreaterThanOrEqual(0)
    expect(idle).toBeLessThan(1)
  } finally {
    engine.close()
  }
})

it('of steps of two programs that follow each other: their clock is compared before the first step only', async () => {
  const flags = flagsFor(fixturePath('deepseek_v3'), { ...TWO_RANKS, deepepMode: 'auto', disableCudaGraph: true })
  const engine = await OneThreadEngine.load(flags)
  try {
    engine.run(requests, [0, 1], 0, { records: 100_000, clock: { now: () => performance.now() } })
    const { normal, low_latency } = engine.lastDispatchSteps
    expect(Math.min(normal, low_latency)).toBeGreaterThan(0)
    for (const { events } of engine.lastTrace!.ranks) {
      let last = Number.NEGATIVE_INFINITY
      for (const { step, operations } of events.steps) {
        for (const { start, end } of operations) {
          expect(start, `step ${step}`).toBeGreaterThanOrEqual(last)
          expect(end, `step ${step}`).toBeGreaterThanOrEqual(start)
          last = end
        }
      }
    }
  } finally {
    engine.close()
  }
})
