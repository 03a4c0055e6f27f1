// Checkpoints of sizes that no fixture has, against the oracle: 5 heads, 10 or 24 experts, hidden 80, a vocabulary of 131, one
// key-value head, tied embeddings, dense layers in between, windows; on one rank and on several.
import { afterAll, describe, expect, it } from 'vitest'
import { CounterRandom } from '../../src/runtime/random.js'
import { type Json, TestCheckpoints } from '../checkpoints.js'
import { Oracle } from '../oracle/index.js'
import type { RandomCheckpoint } from '../random-checkpoints.js'
import { drawing, type GivenFlags, loadOneThread, smallestGap, wantingLogits, worstLogits } from './harness.js'
import { redundantFor } from './layouts.js'

const made = new TestCheckpoints()
afterAll(() => made[Symbol.dispose]())

type Architecture = RandomCheckpoint['architecture']

/** What differs from the odd sizes of random-checkpoints.ts. */
const MODELS: readonly (readonly [Architecture, what: string, config: Json])[] = [
  ['deepseek_v2', 'odd sizes', {}],
  [
    'deepseek_v2',
    'tied, greedy without groups, no q_lora',
    { tie_word_embeddings: true, topk_method: 'greedy', q_lora_rank: null },
  ],
  ['deepseek_v3', 'odd sizes', {}],
  [
    'deepseek_v3',
    'tied, biases, no dense layer',
    { tie_word_embeddings: true, attention_bias: true, first_k_dense_replace: 0 },
  ],
  [
    'deepseek_v3',
    'no q_lora, one group, weights not normalised',
    { q_lora_rank: null, n_group: 1, topk_group: 1, norm_topk_prob: false },
  ],
  ['glm4_moe', 'odd sizes', {}],
  [
    'glm4_moe',
    'no norms, no biases, 24 experts in 4 groups',
    { use_qk_norm: false, attention_bias: false, n_routed_experts: 24, n_group: 4, topk_group: 2 },
  ],
  [
    'glm4_moe',
    'whole heads rotate, two shared experts, tied',
    { partial_rotary_factor: 1, n_shared_experts: 2, tie_word_embeddings: true },
  ],
  [
    'glm4_moe',
    'all experts of one group of two, some with negative scores',
    { n_group: 2, topk_group: 1, num_experts_per_tok: 5 },
  ],
  ['qwen2_moe', 'odd sizes', {}],
  [
    'qwen2_moe',
    'windows on some layers, one kv head',
    { use_sliding_window: true, sliding_window: 9, max_window_layers: 2, num_key_value_heads: 1 },
  ],
  [
    'qwen2_moe',
    'sparse every second layer, no qkv biases, tied',
    { decoder_sparse_step: 2, mlp_only_layers: [], qkv_bias: false, tie_word_embeddings: true },
  ],
  ['qwen3_moe', 'odd sizes', {}],
  [
    'qwen3_moe',
    'window, biases, one kv head, tied',
    {
      use_sliding_window: true,
      sliding_window: 7,
      attention_bias: true,
      num_key_value_heads: 1,
      tie_word_embeddings: true,
    },
  ],
  [
    'qwen3_moe',
    'sparse every second layer, weights not normalised',
    { decoder_sparse_step: 2, mlp_only_layers: [], norm_topk_prob: false, num_experts: 24 },
  ],
  ['mixtral', 'odd sizes', {}],
  [
    'mixtral',
    'window, five kv heads, head_dim 22',
    { sliding_window: 5, num_key_value_heads: 5, head_dim: 22, num_experts_per_tok: 4 },
  ],
  ['olmoe', 'odd sizes', {}],
  [
    'olmoe',
    'one kv head, biases, weights normalised, no clip',
    { num_key_value_heads: 1, attention_bias: true, norm_topk_prob: true, clip_qkv: null },
  ],
  ['gpt_oss', 'odd sizes', {}],
  [
    'gpt_oss',
    'five kv heads, windows on all layers, tied',
    {
      num_key_value_heads: 5,
      layer_types: ['sliding_attention', 'sliding_attention', 'sliding_attention'],
      sliding_window: 4,
      tie_word_embeddings: true,
    },
  ],
]

const LAYOUTS: readonly (readonly [name: string, flags: (experts: number) => GivenFlags, tolerance: number])[] = [
  ['1 rank', () => ({}), 2e-5],
  ['tp2/attn_dp2/ep2', () => ({ tpSize: 2, attnDpSize: 2, epSize: 2, chunkedPrefillSize: 7 }), 2e-4],
  ['tp5, heads and experts cut by 5', () => ({ tpSize: 5, epSize: 1 }), 2e-4],
  [
    'tp3/attn_dp3/ep3 with redundant experts',
    experts => ({ tpSize: 3, attnDpSize: 3, epSize: 3, epNumRedundantExperts: redundantFor(experts, 3) }),
    2e-4,
  ],
  ['tp4/attn_dp4/ep2, experts cut by 2', () => ({ tpSize: 4, attnDpSize: 4, epSize: 2, enableDpLmHead: true }), 2e-4],
]

const VOCAB = 131
const random = new CounterRandom(5, 0)
const PROMPTS = [40, 13, 1].map(length => Array.from({ length }, () => random.below(VOCAB)))

describe('odd sizes against the oracle', () => {
  it.each(MODELS)(
    '%s: %s',
    async (architecture, _, config) => {
      const directory = made.random({ architecture, seed: 11, config })
      const oracle = new Oracle(directory)
      const expected = PROMPTS.map(ids => ({ logits: oracle.logits(ids) }))
      const first = PROMPTS.map((ids, i) => firstToken(expected[i]!.logits, ids.length))
      const requests = PROMPTS.flatMap((ids, i) => [wantingLogits(`logits.${i}`, ids), drawing(`drawn.${i}`, ids, 5)])
      let tokens: (readonly number[])[] | null = null
      for (const [layout, flags, tolerance] of LAYOUTS) {
        const experts =
          ((config['num_experts'] ?? config['n_routed_experts']) as number | undefined) ??
          (architecture.startsWith('deepseek') ? 24 : 10)
        const engine = await loadOneThread(directory, flags(experts))
        const { attnDp } = engine.plan.topology.sizes
        const results = engine.run(
          requests,
          requests.map((_r, i) => i % attnDp),
          3,
        )
        expect(worstLogits(results, expected), layout).toBeLessThan(tolerance)
        const drawn = PROMPTS.map((_p, i) => results.get(`drawn.${i}`)!.tokens)
        expect(
          drawn.map(t => t[0]),
          layout,
        ).toEqual(first)
        // The continuations of all layouts, and of the oracle for what the first layout drew.
        tokens ??= checkContinuations(oracle, drawn)
        expect(drawn, layout).toEqual(tokens)
      }
    },
    60_000,
  )
})

describe('layers as thin as their cuts', () => {
  const ids = PROMPTS[1]!
  const four: GivenFlags = { tpSize: 4, attnDpSize: 4, epSize: 1 }
  const model = (dense: number, shared: number, expert: number): RandomCheckpoint => ({
    architecture: 'qwen2_moe',
    seed: 2,
    config: {
      intermediate_size: dense,
      shared_expert_intermediate_size: shared,
      moe_intermediate_size: expert,
    },
  })

  it.each([
    ['every rank gets a piece', model(4, 5, 8), four],
    ['thin dense layers stay whole', model(3, 4, 8), { ...four, moeDenseTpSize: 1 }],
    ['whole experts may be narrow', model(4, 4, 3), { ...four, epSize: 2, tpSize: 2, attnDpSize: 2 }],
  ])('%s', async (_, description, flags) => {
    const directory = made.random(description)
    const expected = [{ logits: new Oracle(directory).logits(ids) }]
    const engine = await loadOneThread(directory, flags)
    const results = engine.run([wantingLogits('logits.0', ids)], [1], 0)
    expect(worstLogits(results, expected)).toBeLessThan(2e-4)
  })

  it.each([
    ['dense layers of width 3', model(3, 4, 8)],
    ['shared experts of width 3', model(4, 3, 8)],
    ['experts of width 7', model(4, 4, 7)],
  ])('%s over 4 ranks are refused by name', async (what, description) => {
    const load = loadOneThread(made.random(description), four)
    await expect(load).rejects.toThrow(`: ${what} cannot be cut`)
    await expect(load).rejects.toMatchObject({ code: 'SY_PARALLEL_SIZES' })
  })
})

describe('sizes that do not go together', () => {
  it('positions for terabytes of tables are refused with a context that fits', async () => {
    const config = { max_position_embeddings: 2_000_000_000 }
    const directory = made.random({ architecture: 'qwen3_moe', seed: 2, config })
    const load = loadOneThread(directory, { contextLength: null, maxTotalTokens: null })
    await expect(load).rejects.toMatchObject({
      code: 'SY_ENGINE_NOT_ENOUGH_MEMORY',
      remedy: expect.stringMatching(/^Use --context-length \d+ or less\.$/),
    })
  })

  it('a placement for a model whose layers are all dense is refused, not ignored', async () => {
    const directory = made.random({ architecture: 'qwen3_moe', seed: 2, config: { mlp_only_layers: [0, 1, 2] } })
    const load = loadOneThread(directory, { initExpertLocation: '{"physical_to_logical_map": [[0], [0], [0]]}' })
    await expect(load).rejects.toMatchObject({ remedy: 'Leave --init-expert-location out.' })
    const engine = await loadOneThread(directory, {})
    const results = engine.run([wantingLogits('logits.0', [5, 3])], [0], 0)
    expect(worstLogits(results, [{ logits: new Oracle(directory).logits([5, 3]) }])).toBeLessThan(2e-5)
  })

  it.each([
    [{}, '3 tokens cannot be cut into 4 pieces'],
    [{ enableDpLmHead: true }, null],
  ] as const)('a vocabulary of 3 on 4 ranks, %j', async (flags, refusal) => {
    const directory = made.random({ architecture: 'mixtral', seed: 2, config: { vocab_size: 3 } })
    const load = loadOneThread(directory, { tpSize: 4, attnDpSize: 4, epSize: 2, ...flags })
    if (refusal) return await expect(load).rejects.toThrow(refusal)
    const results = (await load).run([wantingLogits('logits.0', [0, 2, 1])], [1], 0)
    expect(worstLogits(results, [{ logits: new Oracle(directory).logits([0, 2, 1]) }])).toBeLessThan(2e-4)
  })
})

const firstToken = (logits: Float64Array, rows: number): number => bestOf(logits.subarray((rows - 1) * VOCAB))

const bestOf = (row: Float64Array): number => row.indexOf(Math.max(...row))

/** Every drawn token is the oracle's choice after the ones before it, and none is a near tie. */
function checkContinuations(oracle: Oracle, drawn: (readonly number[])[]): (readonly number[])[] {
  drawn.forEach((tokens, i) => {
    const prompt = PROMPTS[i]!
    const logits = oracle.logits([...prompt, ...tokens.slice(0, -1)])
    const from = prompt.length - 1
    const rows = logits.subarray(from * VOCAB)
    const chosen = tokens.map((_, t) => bestOf(rows.subarray(t * VOCAB, (t + 1) * VOCAB)))
    expect(smallestGap(rows, VOCAB)).toBeGreaterThan(2e-4)
    expect(tokens).toEqual(chosen)
  })
  return drawn
}
