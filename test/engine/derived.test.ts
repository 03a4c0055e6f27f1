// One model written down in several ways computes the same bits: sharded, in old spelling, tied, with a next-token-prediction
// layer, in other number formats (against the values those round to, stored as F32). On one rank and with everything cut.
import { afterAll, describe, expect, it } from 'vitest'
import { openCheckpoint } from '../../src/formats/safetensors/index.js'
import { type Derivation, TestCheckpoints } from '../checkpoints.js'
import { Oracle } from '../oracle/index.js'
import {
  bitsOf,
  bothKinds,
  fixturePath,
  type GivenFlags,
  loadOneThread,
  maxDifference,
  readReference,
} from './harness.js'

const made = new TestCheckpoints()
afterAll(() => made[Symbol.dispose]())

const FIXTURES = [
  'deepseek_v2',
  'deepseek_v3',
  'deepseek_v3_yarn_noqlora',
  'glm4_moe',
  'gpt_oss',
  'mixtral',
  'olmoe',
  'qwen2_moe',
  'qwen3_moe',
] as const

/** `tp4/attn_dp2/ep2` cuts heads, experts and the width of experts by 2, dense layers and the head by 4. */
const LAYOUTS: readonly GivenFlags[] = [{}, { tpSize: 4, attnDpSize: 2, epSize: 2 }]

const prompts = readReference(fixturePath('mixtral'))
const requests = bothKinds(prompts)

async function outputs(directory: string, flags: GivenFlags) {
  const engine = await loadOneThread(directory, flags)
  const { attnDp } = engine.plan.topology.sizes
  const results = engine.run(
    requests,
    requests.map((_, i) => i % attnDp),
    1,
  )
  return {
    dtype: engine.plan.dtype,
    logits: prompts.map((_, i) => results.get(`logits.${i}`)!.logits),
    tokens: prompts.map((_, i) => results.get(`greedy.${i}`)!.tokens),
  }
}

async function expectSameBits(a: string, b: string, flags: GivenFlags = {}): Promise<void> {
  for (const layout of LAYOUTS) {
    const [one, other] = [await outputs(a, { ...layout, ...flags }), await outputs(b, { ...layout, ...flags })]
    expect(other.dtype).toBe(one.dtype)
    expect(other.logits.map(bitsOf)).toEqual(one.logits.map(bitsOf))
    expect(other.tokens).toEqual(one.tokens)
  }
}

const differ = async (a: string, b: string): Promise<number> => {
  const [one, other] = [await outputs(a, {}), await outputs(b, {})]
  return Math.max(...one.logits.map((logits, i) => maxDifference(logits, other.logits[i]!)))
}

describe('the same bits from', () => {
  it.each(FIXTURES)('%s in three shards and old spelling', async fixture => {
    await expectSameBits(fixturePath(fixture), made.derive(fixture, { shards: 3, oldSpelling: true }))
  })

  it.each(FIXTURES)('%s with tied embeddings as with a copy of them as head', async fixture => {
    const shared = made.derive(fixture, { tied: 'shared' })
    expect(openCheckpoint(shared).tensors.has('lm_head.weight')).toBe(false)
    await expectSameBits(made.derive(fixture, { tied: 'copied' }), shared)
    expect(await differ(fixturePath(fixture), shared)).toBeGreaterThan(0.01)
  })

  it.each(['deepseek_v3', 'deepseek_v3_yarn_noqlora', 'glm4_moe'])(
    '%s with a next-token-prediction layer',
    async fixture => {
      const extended = made.derive(fixture, { nextn: true })
      expect([...openCheckpoint(extended).tensors.keys()].some(name => name.includes('eh_proj'))).toBe(true)
      await expectSameBits(fixturePath(fixture), extended)
    },
  )
})

const STORED: readonly (readonly [string, Derivation & { readonly dtype: NonNullable<Derivation['dtype']> }])[] = [
  ['BF16', { dtype: 'BF16' }],
  ['F16', { dtype: 'F16' }],
  ['F8_E4M3 in blocks of 128 x 128', { dtype: 'F8_E4M3' }],
  ['F8_E4M3 in blocks of 16 x 24, which no cut respects', { dtype: 'F8_E4M3', block: [16, 24] }],
]

describe.each(STORED)('weights stored in %s', (_, derivation) => {
  const quantised = derivation.dtype === 'F8_E4M3'
  it.each(quantised ? ['deepseek_v3', 'glm4_moe', 'qwen3_moe', 'mixtral'] : FIXTURES)(
    '%s: the same bits as their values in F32',
    async fixture => {
      const stored = made.derive(fixture, derivation)
      const values = made.derive(fixture, { ...derivation, asF32: true })
      await expectSameBits(values, stored)
      expect(await differ(fixturePath(fixture), stored)).toBeGreaterThan(1e-4)
    },
  )
})

describe('bfloat16', () => {
  it.each(FIXTURES)('%s: weights that are bfloat16 lose nothing in the bfloat16 kernels', async fixture => {
    const stored = made.derive(fixture, { dtype: 'BF16', config: { dtype: 'bfloat16', torch_dtype: 'bfloat16' } })
    const values = made.derive(fixture, { dtype: 'BF16', asF32: true })
    const oracle = new Oracle(values)
    const { dtype, logits } = await outputs(stored, { dtype: 'auto' })
    expect(dtype).toBe('bf16')
    for (const [i, { ids }] of prompts.entries()) {
      expect(maxDifference(logits[i]!, oracle.logits(ids))).toBeLessThan(2e-5)
    }
  })
})
