// Flags to parallel sizes: what they come to, and every rule with its refusal.
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { buildTopology, type ModelFacts, type ParallelFlags, resolveParallel } from './index.js'

const usual: ParallelFlags = {
  tpSize: 1,
  dpSize: 1,
  attnDpSize: 1,
  attnCpSize: 1,
  epSize: null,
  moeDpSize: 1,
  moeDenseTpSize: null,
  enableDpAttention: false,
  enableDpLmHead: false,
  nnodes: 1,
  nodeRank: 0,
  moeA2aBackend: 'none',
  epNumRedundantExperts: 0,
}
const model: ModelFacts = {
  heads: 8,
  kvHeads: 2,
  latentCache: false,
  experts: 16,
  moeIntermediate: 32,
  denseIntermediate: 64,
  sharedIntermediate: null,
  vocab: 100,
  fp8BlockRows: null,
}
const resolve = (flags: Partial<ParallelFlags>, facts: Partial<ModelFacts> = {}) =>
  resolveParallel({ ...usual, ...flags }, { ...model, ...facts })

/** What the error says and what it tells to do. */
const refusal = (flags: Partial<ParallelFlags>, facts: Partial<ModelFacts> = {}): string => {
  try {
    resolve(flags, facts)
  } catch (error) {
    const { message, remedy } = error as Error & { remedy: string }
    return `${message} | ${remedy}`
  }
  throw new Error('was not refused')
}

describe('parallel sizes', () => {
  it('splits the ranks for attention and for experts', () => {
    const { sizes } = resolve({ tpSize: 4, attnDpSize: 2, epSize: 2 })
    expect(sizes).toEqual({ tp: 4, attnDp: 2, attnCp: 1, attnTp: 2, moeDp: 1, ep: 2, moeTp: 2, nodes: 1 })
  })

  it('reads the old spelling of attention data-parallel, with a note', () => {
    const { sizes, notes } = resolve({ tpSize: 4, dpSize: 4, enableDpAttention: true })
    expect([sizes.attnDp, sizes.attnTp]).toEqual([4, 1])
    expect(notes).toEqual(['--dp-size 4 --enable-dp-attention is read as --attn-dp-size 4'])
    expect(resolve({ enableDpAttention: true }).notes).toEqual([])
  })

  it('gives an all-to-all backend all ranks, and none but all', () => {
    expect(resolve({ tpSize: 4, attnDpSize: 4, moeA2aBackend: 'deepep' }).sizes.ep).toBe(4)
    expect(refusal({ tpSize: 4, epSize: 2, attnDpSize: 4, moeA2aBackend: 'deepep' })).toMatch(/Use --ep-size 4/)
  })

  it('keeps dense layers whole only when asked', () => {
    expect(resolve({ tpSize: 2, attnDpSize: 2 }).denseLocal).toBe(false)
    expect(resolve({ tpSize: 2, attnDpSize: 2, moeDenseTpSize: 1 }).denseLocal).toBe(true)
    expect(resolve({ moeDenseTpSize: 1 }).denseLocal).toBe(false)
  })

  const refused: [string, Partial<ParallelFlags>, RegExp, Partial<ModelFacts>?][] = [
    ['attention-DP that does not divide', { tpSize: 4, attnDpSize: 3 }, /--attn-dp-size of 1, 2, 4/],
    ['EP that does not divide', { tpSize: 6, epSize: 4, attnDpSize: 6 }, /--ep-size of 1, 2, 3, 6/],
    ['replicas with attention-DP', { tpSize: 4, dpSize: 2, attnDpSize: 2 }, /one of the two/],
    ['two spellings that differ', { tpSize: 4, dpSize: 4, attnDpSize: 2, enableDpAttention: true }, /contradict/],
    ['experts that do not divide', { tpSize: 3, attnDpSize: 3, epSize: 3 }, /--ep-num-redundant-experts 2/],
    ['heads that do not divide', { tpSize: 3 }, /--attn-dp-size of 3/],
    [
      'KV heads that can be neither cut nor repeated',
      { tpSize: 4 },
      /key-value heads.*--attn-dp-size of 2, 4/,
      { heads: 12, kvHeads: 6 },
    ],
    ['experts thinner than their cut', { tpSize: 8, attnDpSize: 8 }, /larger --ep-size: 4, 8/, { moeIntermediate: 4 }],
    [
      'dense layers thinner than their cut',
      { tpSize: 8, attnDpSize: 8 },
      /tp-size 1.*at most 6/,
      { denseIntermediate: 6 },
    ],
    [
      'shared experts thinner than their cut',
      { tpSize: 4, attnDpSize: 4, moeDenseTpSize: 1 },
      /--tp-size of at most 3/,
      { denseIntermediate: 3, sharedIntermediate: 3 },
    ],
    [
      'a vocabulary smaller than its cut',
      { tpSize: 4, attnDpSize: 4, moeDenseTpSize: 1 },
      /3 tokens cannot be cut into 4 pieces.*--enable-dp-lm-head.*at most 3/,
      { vocab: 3 },
    ],
    [
      'a vocabulary smaller than attention-TP',
      { tpSize: 8, attnDpSize: 2, enableDpLmHead: true },
      /3 tokens cannot be cut into 4 pieces.*Use a --tp-size of at most 3/,
      { vocab: 3 },
    ],
    ['EP without experts', { tpSize: 2, epSize: 2, attnDpSize: 2 }, /Leave --ep-size out/, { experts: 0 }],
    [
      'an all-to-all without experts',
      { tpSize: 2, attnDpSize: 2, moeA2aBackend: 'deepep' },
      /Leave --moe-a2a-backend out/,
      { experts: 0 },
    ],
    [
      'replicas of experts that are not there',
      { epNumRedundantExperts: 2 },
      /Leave --ep-num-redundant-experts out/,
      { experts: 0 },
    ],
    ['ranks that do not spread over nodes', { tpSize: 3, attnDpSize: 3, nnodes: 2 }, /multiple of 2/],
    ['a node that does not exist', { tpSize: 2, nnodes: 2, nodeRank: 2 }, /from 0 to 1/],
    ['context parallel', { tpSize: 2, attnCpSize: 2 }, /--attn-cp-size 2 is not supported yet/],
    ['MoE data-parallel', { tpSize: 2, attnDpSize: 2, moeDpSize: 2 }, /--moe-dp-size 2 is not supported yet/],
    ['several nodes', { tpSize: 2, attnDpSize: 2, nnodes: 2 }, /--nnodes 2 is not supported yet/],
    ['whole replicas', { dpSize: 2 }, /--dp-size 2 is not supported yet/],
    ['a dense cut in between', { tpSize: 4, attnDpSize: 4, moeDenseTpSize: 2 }, /Use 1 .* or 4/],
  ]
  it.each(refused)('refuses %s and says what would work', (_, flags, pattern, facts) => {
    expect(refusal(flags, facts)).toMatch(pattern)
  })

  it('takes a small vocabulary when the output head is not cut over all ranks', () => {
    expect(resolve({ tpSize: 4, attnDpSize: 2, enableDpLmHead: true }, { vocab: 2 }).sizes.attnTp).toBe(2)
  })

  it('repeats KV heads when attention-TP exceeds them, and copies a latent cache', () => {
    expect(resolve({ tpSize: 8 }).sizes.attnTp).toBe(8)
    expect(resolve({ tpSize: 8 }, { kvHeads: 1, latentCache: true }).sizes.attnTp).toBe(8)
  })

  it('gives sizes whose groups partition the ranks, or a refusal with a remedy', () => {
    const n = fc.integer({ min: 1, max: 8 })
    fc.assert(
      fc.property(n, n, n, fc.integer({ min: 0, max: 8 }), (tpSize, attnDpSize, epSize, epNumRedundantExperts) => {
        try {
          const { sizes } = resolve({ tpSize, attnDpSize, epSize, epNumRedundantExperts })
          expect(sizes.attnDp * sizes.attnCp * sizes.attnTp).toBe(tpSize)
          expect(sizes.moeDp * sizes.ep * sizes.moeTp).toBe(tpSize)
          for (const groups of Object.values(buildTopology(sizes).groups)) {
            expect(groups.flat().sort((a, b) => a - b)).toEqual(Array.from({ length: tpSize }, (_, r) => r))
          }
        } catch (error) {
          const { code, remedy } = error as { code?: string; remedy?: string }
          if (code === undefined) throw error
          expect(remedy).toMatch(/^(Use|Give|Leave)/)
        }
      }),
    )
  })
})
