// Traces by the GPU's own clock, of steps kernel by kernel and from graphs: no token changes, every operation has its time, in
// order, and steps do not overlap on the GPU.
import { expect, it } from 'vitest'
import { OneThreadEngine } from '../../src/engine/one-thread.js'
import { summarize } from '../../src/trace/index.js'
import { drawing, fixturePath, flagsFor, type GivenFlags } from '../engine/harness.js'
import { TEST_GPU } from './gpu.js'

const requests = [drawing('a', [1, 2, 3, 4, 5], 12), drawing('b', [9, 8], 12)]

it.each([
  ['kernel by kernel', { disableCudaGraph: true }],
  ['in graphs', { cudaGraphBs: '1,2' }],
] satisfies [string, GivenFlags][])('%s', async (_, given) => {
  const flags = flagsFor(fixturePath('deepseek_v3'), { device: `cuda:${TEST_GPU}`, ...given })
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
