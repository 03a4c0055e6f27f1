// Which ranks form which groups, against a layout of SGLang.
import { readFileSync } from 'node:fs'
import { describe, expect, it } from 'vitest'
import { buildTopology, SINGLE_RANK } from './index.js'

const golden = JSON.parse(
  readFileSync(new URL('../../test/fixtures/golden/rank-layout-padding-tbo-static-p2p.json', import.meta.url), 'utf8'),
)

describe('topology', () => {
  it('places the ranks of the golden layout where SGLang does', () => {
    const t = buildTopology({ tp: 8, attnDp: 2, attnCp: 2, attnTp: 2, moeDp: 1, ep: 4, moeTp: 2, nodes: 1 })
    const rows = t.ranks.map(r => ({
      tp: r.rank,
      attn_dp: r.attnDp,
      attn_cp: r.attnCp,
      attn_tp: r.attnTp,
      moe_dp: r.moeDp,
      moe_ep: r.ep,
      moe_tp: r.moeTp,
    }))
    expect(rows).toEqual(golden.layout.rows)
  })

  it('makes attention-TP groups contiguous and expert groups strided', () => {
    const t = buildTopology({ tp: 4, attnDp: 2, attnCp: 1, attnTp: 2, moeDp: 1, ep: 2, moeTp: 2, nodes: 1 })
    expect(t.groups.attnTp).toEqual([
      [0, 1],
      [2, 3],
    ])
    expect(t.groups.attnDp).toEqual([
      [0, 2],
      [1, 3],
    ])
    expect(t.groups.moeEp).toEqual([
      [0, 2],
      [1, 3],
    ])
    expect(t.groups.moeTp).toEqual([
      [0, 1],
      [2, 3],
    ])
  })

  it('is one rank in groups of one by default', () => {
    const t = buildTopology(SINGLE_RANK)
    expect(Object.values(t.groups).every(groups => groups.length === 1 && groups[0]!.length === 1)).toBe(true)
  })
})
