// Reports: numbers that agree with each other and with hand counts, refusals as rows, and plain JSON all through.
import { describe, expect, it } from 'vitest'
import { getAlgorithm } from '../algorithms/registry.js'
import { makeCluster } from '../cluster.js'
import { makeCounts, stepRange } from '../counts.js'
import { balancednessPerStep } from '../loads.js'
import { trivialPlacement } from '../placement.js'
import { syntheticCounts } from '../synthetic.js'
import type { AlgorithmName } from '../types.js'
import { compareReport } from './compare-report.js'
import { planReport } from './plan-report.js'
import { replayReport } from './replay-report.js'
import { sweepReport } from './sweep-report.js'

/** A clock that advances 1 ms at every look. */
const ticking = () => {
  let now = 0
  return () => now++
}
const counts = syntheticCounts({ seed: 8, drift: 'shift', steps: 60, layers: 2, experts: 16, pairs: 2048 })
const cluster = makeCluster({ gpus: 4, nodes: 2, physical: 20 })

describe('plan', () => {
  it('reports before, after, moves and bytes', () => {
    const current = trivialPlacement(2, 16, cluster)
    const input = { counts, cluster, groups: 4, current }
    const { report, placement } = planReport(input, { algorithm: 'auto', clock: ticking(), expertBytes: 10 })
    expect(report).toMatchObject({
      algorithm: 'deepseek_hierarchical',
      asked: 'auto',
      beforeIs: 'current',
      milliseconds: 1,
    })
    expect(report.sizes).toMatchObject({ steps: 60, layers: 2, logical: 16, physical: 20, gpus: 4, nodes: 2 })
    expect(report.after.balancedness).toBeGreaterThan(report.before.balancedness)
    expect(report.after.gpuLoad.map(row => Math.max(...row))).toEqual(report.after.peakPerLayer)
    const moves = report.moves!
    expect(moves.bytes).toBe(moves.moves * 10)
    expect(moves.unchanged + moves.sameGpu + moves.freeRider + moves.moves).toBe(40)
    expect(report.replicated[0]!.every(r => r.replicas === placement.replicaCounts[r.expert])).toBe(true)
    expect(JSON.parse(JSON.stringify(report))).toEqual(report)
  })

  it('leaves moves out without a current placement', () => {
    const { report } = planReport({ counts, cluster, lambda: 0 }, { algorithm: 'switchyard', clock: ticking() })
    expect([report.moves, report.beforeIs, report.lambda]).toEqual([null, 'trivial', 0])
    expect(report.after.peakOverBound).toBeGreaterThanOrEqual(1)
    expect(report.after.peakOverBound).toBeLessThan(1.02)
  })

  it('tells what runs without redundant slots, where trivially placed ones hide it', () => {
    const even = makeCounts([[2, 6, 2, 6]])
    const plan = (physical: number, dead: number[] = []) =>
      planReport(
        { counts: even, cluster: makeCluster({ gpus: 2, physical, dead }), lambda: 0 },
        { algorithm: 'switchyard', clock: ticking() },
      ).report
    // 0 1 2 | 3 0 1 with 0 and 1 halved: 1 + 3 + 2 and 6 + 1 + 3, so 8 ÷ 10; two slots each: 8 and 8.
    expect(plan(6).before.balancedness).toBeCloseTo(0.8, 4)
    expect(plan(6).withoutRedundant).toBeCloseTo(1, 6)
    expect(plan(4).withoutRedundant).toBeNull()
    expect(plan(8, [1]).withoutRedundant).toBeNull()
  })
})

describe('compare', () => {
  it('has a row for every algorithm, ours ahead, refusals with a remedy', () => {
    const done: string[] = []
    const report = compareReport(
      { counts, cluster, groups: 3, lambda: 0 },
      { clock: ticking(), progress: (_, __, what) => done.push(what) },
    )
    expect(report.rows.map(r => r.algorithm)).toEqual(done.slice(0, -1))
    expect(report.best).toBe('switchyard')
    const refused = report.rows.filter(r => r.refused)
    expect(refused.map(r => r.algorithm)).toEqual([
      'deepseek_hierarchical',
      'deepseek_vec_hierarchical',
      'elasticity_aware_hierarchical',
    ])
    expect(refused[0]!.refused!.message).toContain('16 experts do not divide into 3 groups')
    expect(refused[0]!.refused!.remedy).toContain('Use 2 or 4 groups')
    for (const row of report.rows) {
      if (!row.after) continue
      expect(row.movesRelabelled!.moves).toBeLessThanOrEqual(row.moves!.moves)
      expect(row.links!.crossing).toBeCloseTo(
        row.links!.ingress.reduce((a, b) => a + b),
        9,
      )
    }
    expect(JSON.parse(JSON.stringify(report))).toEqual(report)
  })
})

describe('replay', () => {
  const report = replayReport(counts, cluster, {
    clock: ticking(),
    window: 10,
    interval: 10,
    policies: ['deepseek', 'switchyard', 'deepseek_hierarchical'],
    thresholds: [1, 0.9],
    groups: 3,
    expertBytes: 2,
  })
  const run = (algorithm: string, threshold: number) =>
    report.runs.find(r => r.algorithm === algorithm && r.threshold === threshold && !r.once)!

  it('rebalances at every tick with threshold 1, less often below', () => {
    expect(run('deepseek', 1).rebalances.map(r => r.step)).toEqual([10, 20, 30, 40, 50])
    expect(run('switchyard', 0.9).rebalances.length).toBeLessThan(5)
    for (const r of run('switchyard', 0.9).rebalances) expect(r.before).toBeLessThan(0.9)
    for (const r of report.runs) expect(r.balancedness.length).toBe(r.refused ? 0 : 60)
  })

  it('counts gain and cost, and never sees the future', () => {
    const ours = run('switchyard', 1)
    expect(ours.moves).toBe(ours.rebalances.reduce((sum, r) => sum + r.moves, 0))
    expect(ours.bytes).toBe(2 * ours.moves)
    expect(ours.gain).toBeCloseTo(ours.meanBalancedness - run('none', 1).meanBalancedness, 12)
    expect(ours.gain).toBeGreaterThan(0.05)
    expect(ours.moves).toBeLessThan(run('deepseek', 1).moves)
    expect(ours.balancedness.slice(0, 10)).toEqual(run('none', 1).balancedness.slice(0, 10))
    const later = makeCounts({ ...counts, data: counts.data.map((c, i) => (i < 40 * 32 ? c : 7)) })
    const other = replayReport(later, cluster, { clock: ticking(), window: 10, interval: 10, policies: ['switchyard'] })
    expect(other.runs.at(-1)!.balancedness.slice(0, 40)).toEqual(ours.balancedness.slice(0, 40))
  })

  it('compares with the trivial placement and with one plan of the first window that is kept', () => {
    const [none, once] = report.runs
    expect([none!.algorithm, none!.once, none!.rebalances]).toEqual(['none', false, []])
    expect([once!.algorithm, once!.once]).toEqual(['switchyard', true])
    expect(once!.rebalances).toEqual([
      { ...run('switchyard', 1).rebalances[0], milliseconds: once!.rebalances[0]!.milliseconds },
    ])
    const kept = getAlgorithm('switchyard').plan({
      counts: stepRange(counts, 0, 10),
      cluster,
      current: trivialPlacement(2, 16, cluster),
      groups: 3,
    }).placement
    expect(once!.balancedness.slice(10)).toEqual([...balancednessPerStep(kept, stepRange(counts, 10, 60))])
    expect(none!.balancedness).toEqual([...balancednessPerStep(trivialPlacement(2, 16, cluster), counts)])
    for (const r of report.runs.filter(r => r.refused === null)) {
      expect(r.gain).toBeCloseTo(r.meanBalancedness - none!.meanBalancedness, 12)
      expect(r.gainOverOnce).toBeCloseTo(r.meanBalancedness - once!.meanBalancedness, 12)
    }
  })

  it('plans once with the first policy that takes the sizes where ours is not asked for', () => {
    const options = { clock: ticking(), window: 10, interval: 10, groups: 3 }
    const of = (...policies: AlgorithmName[]) => replayReport(counts, cluster, { ...options, policies }).runs
    expect(
      of('deepseek_hierarchical', 'deepseek')
        .filter(r => r.once)
        .map(r => r.algorithm),
    ).toEqual(['deepseek'])
    const refused = of('deepseek_hierarchical')
    expect(refused.map(r => [r.once, r.gainOverOnce])).toEqual([
      [false, null],
      [false, null],
    ])
  })

  it('says why a policy refuses, and refuses bad settings', () => {
    expect(run('deepseek_hierarchical', 1).refused).toContain('3 groups')
    expect(() => replayReport(counts, cluster, { clock: ticking(), window: 0 })).toThrow(/window is 0/)
    expect(() => replayReport(counts, cluster, { clock: ticking(), thresholds: [1.5] })).toThrow(/threshold is 1.5/)
  })
})

describe('sweep', () => {
  it('shows utilisation over sizes, with and without balancing', () => {
    const report = sweepReport(counts, { gpus: [1, 4, 6, 16], gpusPerNode: 4, redundant: 4 })
    expect(report.rows.map(r => [r.gpus, r.nodes, r.physicalWithout, r.physicalWith])).toEqual([
      [1, 1, 16, 20],
      [4, 1, 16, 20],
      [6, 2, 18, 24],
      [16, 4, 16, 32],
    ])
    expect(report.rows[0]!.without).toBe(1)
    for (const row of report.rows.slice(1)) {
      const [auto, ours] = row.with
      expect(ours!.utilisation).toBeGreaterThanOrEqual(auto!.utilisation!)
      expect(ours!.utilisation).toBeGreaterThan(row.without)
    }
    expect(() => sweepReport(counts, { gpus: [0] })).toThrow(/gpus is 0/)
  })
})
