// Any chain of moves over any topology gives every rank exactly the rows a single rank would hold; combinations without a
// meaning are refused while the program is built.
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { buildTopology, type ParallelSizes } from '../../parallel/index.js'
import { ProgramBuilder } from '../../program/index.js'
import { BoundaryError, type Layout, moveRows, rowsIn, type SumGroup } from './index.js'
import {
  type Chain,
  type ChainStage,
  rowsHeld,
  runChain,
  singleRankRow,
  singleRankValue,
  sizesOf,
} from './move-chains.suite.js'

const LAYOUTS: readonly Layout[] = [[], ['ATTN_DP'], ['ATTN_DP', 'ATTN_TP'], ['ATTN_TP']]
const SUMS: readonly (SumGroup | null)[] = [null, 'ATTN_TP', 'TP', 'MOE_OUTPUT']

/** Cuts that rows really have: an axis of one rank cuts nothing. */
const cuts = (sizes: ParallelSizes, layout: Layout): string =>
  [
    ...(layout.includes('ATTN_DP') && sizes.attnDp > 1 ? ['dp'] : []),
    ...(layout.includes('ATTN_TP') && sizes.attnTp > 1 ? ['tp'] : []),
  ].join('+')

/** Rows are cut over attention-DP before they are cut over attention-TP. */
const exists = (sizes: ParallelSizes, layout: Layout): boolean => cuts(sizes, layout) !== 'tp' || sizes.attnDp === 1

/** Where an unfinished sum can be finished: on rows that all its members hold. */
function canOwe(sizes: ParallelSizes, layout: Layout, owes: SumGroup | null): boolean {
  const members = owes === null ? 1 : owes === 'ATTN_TP' ? sizes.attnTp : sizes.tp
  if (members === 1) return true
  return owes === 'ATTN_TP' ? cuts(sizes, layout) === cuts(sizes, ['ATTN_DP']) : cuts(sizes, layout) === ''
}

const TOPOLOGIES = [1, 2, 3, 4, 5, 6, 7, 8].flatMap(attnDp =>
  [1, 2, 3, 4, 5, 6, 7, 8].filter(attnTp => attnDp * attnTp <= 8).map(attnTp => [attnDp, attnTp] as const),
)

const chains: fc.Arbitrary<Chain> = fc.constantFrom(...TOPOLOGIES).chain(([attnDp, attnTp]) => {
  const tp = attnDp * attnTp
  return fc
    .record({
      ep: fc.constantFrom(...[1, 2, 3, 4, 5, 6, 7, 8].filter(ep => tp % ep === 0)),
      mode: fc.constantFrom(
        ['MAX_LEN', 'all_gatherv'] as const,
        ['SUM_LEN', 'all_gatherv'] as const,
        ['SUM_LEN', 'all_reduce'] as const,
      ),
      tokens: fc.array(fc.oneof(fc.constant(0), fc.nat(5)), { minLength: attnDp, maxLength: attnDp }),
      width: fc.integer({ min: 1, max: 3 }),
      start: fc.nat(3),
      picks: fc.array(fc.tuple(fc.nat(3), fc.nat(3)), { minLength: 1, maxLength: 5 }),
      seed: fc.nat(10_000),
      end: fc.constantFrom('move', 'boundary', 'unfused boundary'),
    })
    .map(({ ep, mode: [padding, sumLenGather], tokens, width, start, picks, seed, end }): Chain => {
      const sizes = sizesOf(attnDp, attnTp, ep)
      const layouts = LAYOUTS.filter(l => exists(sizes, l))
      const first = layouts[start % layouts.length]!
      let layout = first
      const stages = picks.map(([to, sum]): ChainStage => {
        const sums = SUMS.filter(s => canOwe(sizes, layout, s))
        layout = layouts[to % layouts.length]!
        return { owes: sums[sum % sums.length]!, to: layout }
      })
      return { sizes, padding, sumLenGather, tokens, width, start: first, stages, seed, end }
    })
})

function checkChain(chain: Chain): void {
  const ranks = buildTopology(chain.sizes).ranks
  const last = chain.stages.at(-1)!.to
  runChain(chain).forEach((found, rank) => {
    rowsHeld(chain, last, ranks[rank]!).forEach(({ dp, row, pad }, r) => {
      if (pad) return
      const expected = singleRankRow(chain, dp, row)
      if (found[r]!.some((v, c) => v !== expected[c])) {
        throw new Error(`rank ${rank}, DP rank ${dp}, row ${row}: ${found[r]} instead of ${expected}`)
      }
    })
  })
}

describe('chains of moves', () => {
  it('equal the single rank in 5,000 random chains', () => {
    fc.assert(fc.property(chains, checkChain), { numRuns: 5000, seed: 4 })
  }, 120_000)

  it('are caught when they are wrong: a stage whose sum is left out', () => {
    const chain: Chain = {
      sizes: sizesOf(2, 2),
      padding: 'SUM_LEN',
      sumLenGather: 'all_gatherv',
      tokens: [2, 1],
      width: 2,
      start: ['ATTN_DP'],
      stages: [{ owes: 'ATTN_TP', to: [] }],
      seed: 1,
      end: 'move',
    }
    checkChain(chain)
    const [first] = runChain(chain)
    const partial = { ...chain, stages: [{ owes: null, to: [] }] } as const
    expect(first).not.toEqual(runChain(partial)[0])
    expect(first![0]![0]).toBe(singleRankValue(chain, 0, 0, 0))
    expect(singleRankValue(partial, 0, 0, 0)).not.toBe(singleRankValue(chain, 0, 0, 0))
  })
})

describe('every combination', () => {
  const attempt = (sizes: ParallelSizes, layout: Layout, owes: SumGroup | null, to: Layout) => {
    const builder = new ProgramBuilder()
    const rows = rowsIn(sizes, layout)
    const value = builder.buffer({ name: 'x', kind: 'input', dtype: 'f32', rows, columns: 4 })
    const ctx = { builder, sizes, padding: 'SUM_LEN', sumLenGather: 'all_gatherv', attnTpIndex: 0 } as const
    moveRows(ctx, { value, layout, owes }, to, 'move')
  }

  it.each(TOPOLOGIES)('attn_dp %i x attn_tp %i is built or refused by name', (attnDp, attnTp) => {
    const sizes = sizesOf(attnDp, attnTp)
    let refused = 0
    for (const layout of LAYOUTS) {
      for (const owes of SUMS) {
        for (const to of LAYOUTS) {
          const defined = exists(sizes, layout) && exists(sizes, to) && canOwe(sizes, layout, owes)
          if (defined) attempt(sizes, layout, owes, to)
          else expect(() => attempt(sizes, layout, owes, to), `${layout} ${owes} ${to}`).toThrow(BoundaryError)
          if (!defined) refused++
        }
      }
    }
    expect(refused > 0).toBe(attnDp * attnTp > 1)
  })

  it('rows cut over context are refused', () => {
    const sizes: ParallelSizes = { ...sizesOf(2, 2), tp: 8, attnCp: 2, moeTp: 8 }
    for (const layout of [['ATTN_CP'], ['ATTN_DP', 'ATTN_CP']] as const) {
      expect(() => attempt(sizes, layout, null, ['ATTN_DP'])).toThrow(BoundaryError)
      expect(() => attempt(sizes, ['ATTN_DP'], null, layout)).toThrow(BoundaryError)
    }
    expect(() => attempt(sizes, ['ATTN_DP'], 'ATTN_CP', [])).toThrow(/ATTN_CP/)
  })
})
