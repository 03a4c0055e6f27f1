// Sizes → topology: where each rank stands on every axis and which groups it belongs to. Pure functions, plain data.
//
// A tensor-parallel block of `tp` ranks is cut twice: for attention tp = attn_dp × attn_cp × attn_tp, for experts
// tp = moe_dp × ep × moe_tp; the last axis is the fastest (source: SGLang distributed/parallel_state.py and
// layers/dp_attention.py). `rank` is the index in the block.

export interface ParallelSizes {
  readonly tp: number
  readonly attnDp: number
  readonly attnCp: number
  readonly attnTp: number
  readonly moeDp: number
  readonly ep: number
  readonly moeTp: number
  readonly nodes: number
}

export interface RankCoordinates {
  readonly rank: number
  readonly node: number
  readonly attnDp: number
  readonly attnCp: number
  readonly attnTp: number
  readonly moeDp: number
  readonly ep: number
  readonly moeTp: number
}

/** Groups that hold one axis: ranks that differ in that axis only. Each list of ranks is ascending. */
export type GroupName = 'world' | 'attnTp' | 'attnCp' | 'attnDp' | 'moeEp' | 'moeTp' | 'moeDp'

export interface Topology {
  readonly sizes: ParallelSizes
  readonly ranks: readonly RankCoordinates[]
  readonly groups: Readonly<Record<GroupName, readonly (readonly number[])[]>>
}

export const SINGLE_RANK: ParallelSizes = {
  tp: 1,
  attnDp: 1,
  attnCp: 1,
  attnTp: 1,
  moeDp: 1,
  ep: 1,
  moeTp: 1,
  nodes: 1,
}

export function buildTopology(sizes: ParallelSizes): Topology {
  const perNode = sizes.tp / sizes.nodes
  const ranks = Array.from({ length: sizes.tp }, (_, rank): RankCoordinates => {
    return Object.freeze({
      rank,
      node: Math.floor(rank / perNode),
      attnDp: Math.floor(rank / (sizes.attnTp * sizes.attnCp)),
      attnCp: Math.floor(rank / sizes.attnTp) % sizes.attnCp,
      attnTp: rank % sizes.attnTp,
      moeDp: Math.floor(rank / (sizes.ep * sizes.moeTp)),
      ep: Math.floor(rank / sizes.moeTp) % sizes.ep,
      moeTp: rank % sizes.moeTp,
    })
  })
  const groupBy = (key: (c: RankCoordinates) => string): number[][] => {
    const groups = new Map<string, number[]>()
    for (const c of ranks) groups.set(key(c), [...(groups.get(key(c)) ?? []), c.rank])
    return [...groups.values()]
  }
  return Object.freeze({
    sizes,
    ranks: Object.freeze(ranks),
    groups: Object.freeze({
      world: [ranks.map(c => c.rank)],
      attnTp: groupBy(c => `${c.attnDp},${c.attnCp}`),
      attnCp: groupBy(c => `${c.attnDp},${c.attnTp}`),
      attnDp: groupBy(c => `${c.attnCp},${c.attnTp}`),
      moeEp: groupBy(c => `${c.moeDp},${c.moeTp}`),
      moeTp: groupBy(c => `${c.moeDp},${c.ep}`),
      moeDp: groupBy(c => `${c.ep},${c.moeTp}`),
    }),
  })
}

/** The group of `rank` that holds an axis. */
export function groupOf(topology: Topology, name: GroupName, rank: number): readonly number[] {
  return topology.groups[name].find(g => g.includes(rank)) ?? [rank]
}
