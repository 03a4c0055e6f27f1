// The oracle against logits that transformers computed: it must be right before anything may be compared with it.
import { describe, expect, it } from 'vitest'
import { FIXTURES } from '../checkpoints.js'
import { maxDifference, readReference } from '../engine/harness.js'
import { Oracle } from './index.js'

describe('the oracle', () => {
  it.each([
    'deepseek_v2',
    'deepseek_v3',
    'deepseek_v3_yarn_noqlora',
    'glm4_moe',
    'gpt_oss',
    'mixtral',
    'olmoe',
    'qwen2_moe',
    'qwen3_moe',
  ])('computes %s as transformers does', fixture => {
    const directory = `${FIXTURES}/${fixture}`
    const oracle = new Oracle(directory)
    for (const { ids, logits } of readReference(directory)) {
      expect(maxDifference(oracle.logits(ids), logits)).toBeLessThan(1e-5)
      // Rows that travel unchanged change nothing but the order of sums.
      const travelled = oracle.logits(ids, { ranks: 4, send: x => x, sendBack: x => x, choose: own => own })
      expect(maxDifference(travelled, oracle.logits(ids))).toBeLessThan(1e-11)
    }
  })
})
