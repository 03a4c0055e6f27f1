// Votes to plans: padding against golden cases, stopping, fields that must agree.
import { readFileSync } from 'node:fs'
import { describe, expect, it } from 'vitest'
import { castVote, choosePadding, fallbackVote, IDLE_BATCH, type LocalBatch, planStep, VOTE_WORDS } from './index.js'

const golden = JSON.parse(
  readFileSync(new URL('../../test/fixtures/golden/rank-layout-padding-tbo-static-p2p.json', import.meta.url), 'utf8'),
)

const context = {
  step: 3,
  decodeGraph: false,
  stopping: false,
  prefillable: false,
  doorbell: 0,
  configHash: 77,
  placementVersion: 1,
  generation: 2,
  previousPlanHash: -5,
}
const votes = (batches: readonly LocalBatch[], contexts = batches.map(() => context)): Int32Array => {
  const all = new Int32Array(batches.length * VOTE_WORDS)
  for (const [r, b] of batches.entries()) {
    castVote(b, contexts[r]!, all.subarray(r * VOTE_WORDS, (r + 1) * VOTE_WORDS))
  }
  return all
}
const ranks = (n: number) => ({ tp: n, attnDp: n })
const decode = (tokens: number): LocalBatch => ({ ...IDLE_BATCH, mode: 'decode', tokens, logitRows: tokens })

describe('votes and plans', () => {
  it('keeps lists, takes the maximum of extend, and pads as the reference does', () => {
    const plan = planStep(votes([decode(8), decode(8), IDLE_BATCH, IDLE_BATCH]), ranks(4))
    expect(plan.numTokens).toEqual([8, 8, 0, 0])
    expect(plan.forwardModes).toEqual(['decode', 'decode', 'idle', 'idle'])
    expect(plan).toMatchObject({ isExtend: false, idle: false, stop: false, dpPadding: 'MAX_LEN', step: 3 })
    const mixed = planStep(votes([decode(1), { ...decode(5), mode: 'mixed' }]), ranks(2))
    expect(mixed).toMatchObject({ isExtend: true, dpPadding: 'SUM_LEN' })
  })

  it('chooses the padding mode of every golden case', () => {
    expect(golden.padding.length).toBe(6)
    for (const [isExtend, numTokens, mode] of golden.padding) {
      expect(choosePadding(numTokens, isExtend), JSON.stringify(numTokens)).toBe(mode)
    }
  })

  it('stops only when everyone wants to and nobody has work', () => {
    const stopping = { ...context, stopping: true }
    expect(planStep(votes([IDLE_BATCH, IDLE_BATCH], [stopping, context]), ranks(2)).stop).toBe(false)
    expect(planStep(votes([IDLE_BATCH, decode(1)], [stopping, stopping]), ranks(2)).stop).toBe(false)
    expect(planStep(votes([IDLE_BATCH, IDLE_BATCH], [stopping, stopping]), ranks(2)).stop).toBe(true)
  })

  it.each(['step', 'configHash', 'placementVersion', 'generation', 'previousPlanHash'] as const)(
    'refuses votes whose %s differs, naming field and ranks',
    field => {
      const other = { ...context, [field]: 1234 }
      const snake = field.replace(/[A-Z]/g, c => `_${c.toLowerCase()}`)
      expect(() => planStep(votes([decode(1), decode(1), decode(1)], [context, context, other]), ranks(3))).toThrow(
        new RegExp(`${snake} is ${context[field]} on ranks 0, 1; 1234 on rank 2`),
      )
    },
  )

  it('finds the mode of those that have work', () => {
    expect(planStep(votes([decode(1), IDLE_BATCH]), ranks(2)).globalMode).toBe('decode')
    expect(planStep(votes([decode(1), { ...decode(3), mode: 'extend' }]), ranks(2)).globalMode).toBeNull()
    expect(planStep(votes([IDLE_BATCH]), ranks(1)).globalMode).toBe('idle')
  })

  it('marks a pass of probes only', () => {
    const probe = { ...decode(1), healthCheck: true }
    expect(planStep(votes([probe, IDLE_BATCH]), ranks(2)).isHealthCheck).toBe(true)
    expect(planStep(votes([probe, decode(2)]), ranks(2)).isHealthCheck).toBe(false)
    expect(planStep(votes([IDLE_BATCH, IDLE_BATCH]), ranks(2)).isHealthCheck).toBe(false)
  })

  it('writes the fallback row of a rank that is gone in the order of the wire', () => {
    const row = new Int32Array(VOTE_WORDS)
    fallbackVote(context, row)
    expect([...row.subarray(0, 11)]).toEqual([0, 0, 1, 0, 1, 4, 0, 0, 1, 0, 0])
  })

  it('lets attention-TP members follow the first of their group', () => {
    const all = votes([decode(3), IDLE_BATCH, decode(5), IDLE_BATCH])
    expect(planStep(all, { tp: 4, attnDp: 2 }).numTokens).toEqual([3, 5])
  })

  it('replays a graph only when every attention-DP rank can', () => {
    const able = { ...context, decodeGraph: true }
    expect(planStep(votes([decode(3), decode(2)], [able, able]), ranks(2)).decodeGraph).toBe(true)
    expect(planStep(votes([decode(3), decode(2)], [able, context]), ranks(2)).decodeGraph).toBe(false)
  })

  it('is frozen and hashes what it was made of', () => {
    const a = planStep(votes([decode(4), IDLE_BATCH]), ranks(2))
    expect(Object.isFrozen(a)).toBe(true)
    expect(planStep(votes([decode(4), IDLE_BATCH]), ranks(2)).hash).toBe(a.hash)
    expect(planStep(votes([decode(5), IDLE_BATCH]), ranks(2)).hash).not.toBe(a.hash)
  })
})
