// The layouts every model is run in, and the ways a run can differ that must not matter. Plain data.
import type { GivenFlags } from './harness.js'

export interface LayoutCase {
  readonly name: string
  /** Flags for a model with this many routed experts. */
  readonly flags: (experts: number) => GivenFlags
}

const fixed = (name: string, flags: GivenFlags): LayoutCase => ({ name, flags: () => flags })

/** Physical experts that divide over `ep`: at least one logical expert gets a second replica. */
export const redundantFor = (experts: number, ep: number): number => ep - (experts % ep)

export const LAYOUTS: readonly LayoutCase[] = [
  fixed('1 rank', {}),
  fixed('tp2', { tpSize: 2 }),
  fixed('tp2/attn_dp2/ep2', { tpSize: 2, attnDpSize: 2, epSize: 2 }),
  fixed('tp4/attn_dp2/ep2', { tpSize: 4, attnDpSize: 2, epSize: 2 }),
  fixed('tp4/attn_dp2/ep4', { tpSize: 4, attnDpSize: 2, epSize: 4 }),
  fixed('tp4/attn_dp4/ep2', { tpSize: 4, attnDpSize: 4, epSize: 2 }),
  fixed('tp4/attn_dp1/ep4', { tpSize: 4, epSize: 4 }),
  fixed('tp8/attn_dp4/ep8', { tpSize: 8, attnDpSize: 4, epSize: 8 }),
  {
    name: 'tp3/attn_dp3/ep3 with redundant experts',
    flags: experts => ({ tpSize: 3, attnDpSize: 3, epSize: 3, epNumRedundantExperts: redundantFor(experts, 3) }),
  },
  fixed('tp4/attn_dp2/ep2, dense layers whole, head per DP rank', {
    tpSize: 4,
    attnDpSize: 2,
    epSize: 2,
    enableDpLmHead: true,
    moeDenseTpSize: 1,
  }),
]

export const layoutNamed = (name: string): LayoutCase => {
  const found = LAYOUTS.find(l => l.name === name)
  if (!found) throw new Error(`no layout ${name}`)
  return found
}

/** Ways to run one layout. */
export interface Variant {
  readonly name: string
  readonly flags: GivenFlags
  /** Attention-DP rank of request i. */
  readonly route: (i: number, dpRanks: number) => number
}

const spread: Variant['route'] = (i, dpRanks) => i % dpRanks

/** With mixed lengths in all of them: whole prompts and chunks of 3, every gather, all requests on the last DP rank. */
export const variantsFor = (attnDp: number): readonly Variant[] => {
  const always: Variant[] = [
    { name: 'whole prompts', flags: {}, route: spread },
    {
      name: 'chunks of 3, other ranks idle',
      flags: { chunkedPrefillSize: 3, ...(attnDp > 1 ? { dpGather: 'all_gather' } : {}) },
      route: (_, dpRanks) => dpRanks - 1,
    },
  ]
  if (attnDp === 1) return always
  return [
    ...always,
    { name: 'chunks of 3, all_gatherv', flags: { chunkedPrefillSize: 3, dpGather: 'all_gatherv' }, route: spread },
    { name: 'all_reduce, one rank idle', flags: { dpGather: 'all_reduce' }, route: (i, dp) => i % (dp - 1) },
    { name: 'all_gather', flags: { dpGather: 'all_gather' }, route: spread },
  ]
}
