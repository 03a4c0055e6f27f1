// Fused layer boundaries (sum, residual, norm and the gather's copy in one pass) against the same program with every one of them
// an operation of its own: the same bits, in every layout. And which boundaries are fused, and which are not plain.
import { describe, expect, it } from 'vitest'
import { OneThreadEngine, type OneThreadResult } from '../../src/engine/one-thread.js'
import { bitsOf, bothKinds, fixturePath, flagsFor, type GivenFlags, readReference } from './harness.js'
import { LAYOUTS, layoutNamed } from './layouts.js'

const EXPERTS: Readonly<Record<string, number>> = {
  deepseek_v2: 16,
  deepseek_v3: 16,
  deepseek_v3_yarn_noqlora: 16,
  glm4_moe: 16,
  gpt_oss: 8,
  mixtral: 8,
  olmoe: 16,
  qwen2_moe: 8,
  qwen3_moe: 8,
}

const load = (fixture: string, given: GivenFlags, unfused: boolean): Promise<OneThreadEngine> =>
  OneThreadEngine.load(flagsFor(fixturePath(fixture), given), { unfused })

/** Operations that only fused programs have, and those that fusing takes away, over all programs of a rank. */
function countsOf(engine: OneThreadEngine) {
  const programs = engine.plan.programs[0]!.map(p => p.program)
  const count = (kind: string) =>
    programs.reduce((sum, p) => sum + p.operations.filter(op => op.kind === kind).length, 0)
  const exchanges = programs.reduce((sum, p) => sum + p.buffers.filter(b => b.kind === 'exchange').length, 0)
  return { reduceNorm: count('reduce_norm'), addNorm: count('add_rms_norm'), exchanges }
}

function expectSame(found: ReadonlyMap<string, OneThreadResult>, expected: ReadonlyMap<string, OneThreadResult>) {
  expect(found.size).toBe(expected.size)
  for (const [id, { tokens, logprobs, logits }] of expected) {
    const result = found.get(id)!
    expect(tokens.length + logits.length).toBeGreaterThan(0)
    expect(result.tokens, id).toEqual(tokens)
    expect(bitsOf(Float32Array.from(result.logprobs)), id).toEqual(bitsOf(Float32Array.from(logprobs)))
    expect(bitsOf(result.logits), id).toEqual(bitsOf(logits))
  }
}

async function compare(fixture: string, given: GivenFlags, seed: number) {
  const [fused, unfused] = [await load(fixture, given, false), await load(fixture, given, true)]
  const requests = bothKinds(readReference(fixturePath(fixture)))
  const routes = requests.map((_, i) => i % (given.attnDpSize ?? 1))
  expectSame(fused.run(requests, routes, seed), unfused.run(requests, routes, seed + 1))
  expect(countsOf(unfused)).toMatchObject({ reduceNorm: 0, exchanges: 0 })
  return countsOf(fused)
}

describe('fused boundaries give the bits of separate operations', () => {
  it.each(LAYOUTS.map(l => [l.name, l] as const))(
    'deepseek_v3 (a dense layer, then experts), %s, every gather',
    async (_, layout) => {
      const given = layout.flags(16)
      const gathers = (given.attnDpSize ?? 1) > 1 ? (['auto', 'all_gather', 'all_gatherv', 'all_reduce'] as const) : []
      for (const [seed, dpGather] of ['auto' as const, ...gathers.slice(1)].entries()) {
        await compare('deepseek_v3', { ...given, dpGather, chunkedPrefillSize: seed % 2 ? 5 : 64 }, seed)
      }
    },
    120_000,
  )

  it('attention-TP of 4 beside attention-DP: fused and separate sums in one layer', async () => {
    const fused = await compare('deepseek_v3', { tpSize: 8, attnDpSize: 2, epSize: 8, chunkedPrefillSize: 6 }, 8)
    expect(Math.min(fused.reduceNorm, fused.addNorm)).toBeGreaterThan(0)
  })

  const OTHERS = ['tp2', 'tp4/attn_dp2/ep2', 'tp3/attn_dp3/ep3 with redundant experts']
  it.each(
    Object.entries(EXPERTS).flatMap(([fixture, experts]) => OTHERS.map(name => [fixture, name, experts] as const)),
  )(
    '%s, %s',
    async (fixture, name, experts) => {
      const fused = await compare(fixture, layoutNamed(name).flags(experts), 3)
      expect(fused.reduceNorm).toBeGreaterThan(0)
    },
    60_000,
  )

  it.each(['reference', 'wasm'] as const)(
    'on %s kernels',
    async kernels => {
      await compare('deepseek_v3', { tpSize: 2, attnDpSize: 2, epSize: 2, kernels }, 5)
      await compare('deepseek_v3', { tpSize: 4, epSize: 4, kernels, chunkedPrefillSize: 7 }, 6)
    },
    60_000,
  )

  it('through an all-to-all', async () => {
    const a2a = { moeA2aBackend: 'deepep', tpSize: 4, attnDpSize: 2, epSize: 4, maxRunningRequests: 12 } as const
    const fused = await compare('deepseek_v3', { ...a2a, maxTotalTokens: 12 * 64, chunkedPrefillSize: 40 }, 7)
    // Attention's sums are fused; combined rows come back complete; only the dense layer's rows are gathered.
    expect(fused.reduceNorm).toBeGreaterThan(0)
  })
})

describe('what is fused', () => {
  /** Fused and separate norms and exchange buffers of one program of rank 0. */
  const shape = async (given: GivenFlags, fixture = 'deepseek_v3') => {
    const engine = await load(fixture, given, false)
    const { operations, buffers } = engine.plan.programs[0]!.at(-1)!.program
    const layers = engine.plan.spec.layers.length
    const sums = operations.filter(op => op.kind === 'reduce_norm').map(op => op.label.replace(/ \+.* into/, ' into'))
    return {
      layers,
      sums,
      norms: operations.filter(op => op.kind === 'add_rms_norm').length,
      exchanges: buffers.filter(b => b.kind === 'exchange').map(b => b.name),
    }
  }

  it('attention-DP: the sum of experts or dense layer, and every gather', async () => {
    const { layers, sums, norms, exchanges } = await shape({ tpSize: 2, attnDpSize: 2, epSize: 2 })
    expect(sums).toEqual([
      ...Array(layers - 1).fill('sum over all ranks into attn_in'),
      'sum over all ranks into final',
    ])
    // Attention over one head group owes nothing.
    expect(norms).toBe(layers)
    expect(exchanges).toHaveLength(layers)
  })

  it('attention-TP: both sums of a layer', async () => {
    const { layers, sums, norms, exchanges } = await shape({ tpSize: 2 })
    expect(sums).toHaveLength(2 * layers)
    expect(new Set(sums)).toEqual(
      new Set(
        ['attention-TP into ffn_in', 'attention-TP into moe_in', 'all ranks into attn_in', 'all ranks into final'].map(
          s => `sum over ${s}`,
        ),
      ),
    )
    expect([norms, exchanges]).toEqual([0, []])
  })

  it('both: two members of an attention-TP group sum all rows of their attention-DP rank', async () => {
    const { layers, sums, norms, exchanges } = await shape({ tpSize: 4, attnDpSize: 2, epSize: 4 })
    expect(sums).toHaveLength(2 * layers)
    expect([norms, exchanges.length]).toEqual([0, layers])
  })

  it('not plain: slices of larger attention-TP groups, which are gathered first, and gathers by all-reduce', async () => {
    const both = await shape({ tpSize: 8, attnDpSize: 2, epSize: 8 })
    expect(both.sums).toHaveLength(both.layers)
    expect(both.sums.every(label => label.startsWith('sum over attention-TP'))).toBe(true)
    expect(both.norms).toBe(both.layers)
    const reduced = await shape({ tpSize: 2, attnDpSize: 2, epSize: 2, dpGather: 'all_reduce' })
    // Rows of experts carry ids, which are never added: they are gathered by copying all the same.
    expect(reduced.exchanges.every(name => name.endsWith('.moe_in'))).toBe(true)
    expect(reduced.exchanges.length).toBeGreaterThan(0)
  })

  it('nothing over one rank', async () => {
    const { sums, exchanges, layers, norms } = await shape({})
    expect([sums, exchanges, norms]).toEqual([[], [], 2 * layers])
  })
})
