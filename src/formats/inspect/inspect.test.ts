// Reports against numbers counted by hand from the fixtures' shapes.
import { cpSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { TestCheckpoints } from '../../../test/checkpoints.js'
import { inspectCheckpoint } from './index.js'

describe('inspectCheckpoint', () => {
  it('the demo: latent cache, FP8 and BF16 bytes, tokenizer', () => {
    const report = inspectCheckpoint('models/demo')
    expect(report).toMatchObject({
      architecture: 'deepseek_v3',
      layers: { total: 6, dense: 1, moe: 5, nextn: 0 },
      attention: { kind: 'mla', heads: 8, kvHeads: 1, cachedValues: 80 },
      experts: { routed: 32, perToken: 4, groups: 4, topGroups: 2, scoring: 'sigmoid', sharedIntermediate: 128 },
      kvBytesPerToken: 6 * 80 * 4,
      tokenizer: { vocabSize: 8192, eosToken: '<|end_of_text|>', chatTemplate: true },
      eosTokenIds: [1],
    })
    // gate, up and down of 128 × 256 bytes and two block scales each.
    expect(report.experts!.bytesEach).toBe(3 * (128 * 256 + 2 * 4))
    const { parameters, bytesByDtype, bytes, files } = report.weights!
    const routed = 5 * 32 * 3 * 128 * 256
    expect(parameters.routedExperts).toBe(routed)
    expect(parameters.total - parameters.active).toBe((routed * 28) / 32)
    expect(Object.keys(bytesByDtype).sort()).toEqual(['BF16', 'F32', 'F8_E4M3'])
    expect(Object.values(bytesByDtype).reduce((a, b) => a + b)).toBe(bytes)
    expect(files).toBe(1)
  })

  it('grouped-query attention, windows, stacked experts', () => {
    const report = inspectCheckpoint('test/fixtures/checkpoints/gpt_oss')
    expect(report.attention).toEqual({
      kind: 'gqa',
      heads: 4,
      kvHeads: 2,
      cachedValues: 64,
      windowLayers: 2,
      window: 16,
    })
    expect(report.kvBytesPerToken).toBe(3 * 64 * 4)
    expect(report.experts!.bytesEach).toBe(4 * (64 * 64 + 64 + 32 * 64 + 64))
    expect(report.tokenizer).toBeNull()
  })

  it('next-token-prediction layers are counted apart; a config alone is enough', () => {
    using made = new TestCheckpoints()
    const plain = inspectCheckpoint('test/fixtures/checkpoints/deepseek_v3')
    const extended = inspectCheckpoint(made.derive('deepseek_v3', { nextn: true, shards: 2 }))
    expect(extended.weights!.parameters.total).toBe(plain.weights!.parameters.total)
    expect(extended.weights!.parameters.nextn).toBeGreaterThan(100_000)
    expect(extended.weights!.files).toBe(2)
    expect(extended.experts).toEqual(plain.experts)
    const dir = made.directory()
    cpSync('test/fixtures/checkpoints/mixtral/config.json', join(dir, 'config.json'))
    expect(inspectCheckpoint(dir)).toMatchObject({ weights: null, tokenizer: null, experts: { bytesEach: null } })
  })
})
