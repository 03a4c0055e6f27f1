// Grouped-query attention: fused q, k and v projection, optional norms, rope, paged cache, output projection.
// Heads are cut over attention-TP; a rank with fewer KV heads than members repeats them. The output owes that sum.
import type { GqaSpec } from '../formats/model-spec.js'
import { columns, type Ref } from '../program/index.js'
import { elementsOf, joined, type LayerContext, rowsOf, stacked } from './context.js'

export interface GqaNames {
  readonly kind: 'gqa'
  readonly q: string
  readonly k: string
  readonly v: string
  readonly o: string
  readonly qNorm: string
  readonly kNorm: string
  readonly sinks: string
}

/** Columns of one position in the cache: keys of all local KV heads, then values. */
export const gqaKvColumns = (spec: GqaSpec, attnTp: number): number =>
  2 * Math.max(1, spec.kvHeads / attnTp) * spec.headDim

/** @returns the attention output [tokens, hidden], a partial sum over attention-TP. */
export function gqaAttention(ctx: LayerContext, spec: GqaSpec, names: GqaNames, x: Ref, eps: number): Ref {
  const { builder: b, inputs, layer, hidden } = ctx
  const { headDim } = spec
  const heads = spec.heads / ctx.attnTp.count
  const kvHeads = Math.max(1, spec.kvHeads / ctx.attnTp.count)
  const firstHead = ctx.attnTp.index * heads
  const firstKvHead = Math.floor((firstHead * spec.kvHeads) / spec.heads)
  const [qWidth, kvWidth] = [heads * headDim, kvHeads * headDim]

  const qkv = b.arena('qkv', qWidth + 2 * kvWidth)
  const [qRows, kvRows] = [spec.heads * headDim, spec.kvHeads * headDim]
  const parts = [
    { name: names.q, total: qRows, from: firstHead * headDim, count: qWidth },
    { name: names.k, total: kvRows, from: firstKvHead * headDim, count: kvWidth },
    { name: names.v, total: kvRows, from: firstKvHead * headDim, count: kvWidth },
  ]
  const weight = b.matrix(
    stacked(
      `${layer}.attn.qkv`,
      hidden,
      parts.map(p => rowsOf(`${p.name}.weight`, [p.total, hidden], p.from, p.count)),
    ),
  )
  const bias = spec.qkvBias
    ? b.vector(
        joined(
          `${layer}.attn.qkv_bias`,
          parts.map(p => elementsOf(`${p.name}.bias`, p.total, p.from, p.count)),
        ),
      )
    : undefined
  b.emit('linear', { out: qkv, x, weight, ...(bias ? { bias } : {}) }, { label: 'query, key and value projection' })

  const q = columns(qkv, 0, qWidth)
  const k = columns(qkv, qWidth, kvWidth)
  if (spec.qkNorm === 'head') {
    for (const [part, name, groups] of [
      [q, names.qNorm, heads],
      [k, names.kNorm, kvHeads],
    ] as const) {
      const norm = b.vector(
        joined(`${layer}.attn.${part === q ? 'q' : 'k'}_norm`, [elementsOf(`${name}.weight`, headDim)]),
      )
      b.emit(
        'rms_norm',
        { out: part, x: part, weight: norm, width: headDim, groups, eps },
        { label: 'norm of each head' },
      )
    }
  } else if (spec.qkNorm === 'row') {
    rowNorm(ctx, q, names.qNorm, qRows, firstHead * headDim, 'q', eps)
    rowNorm(ctx, k, names.kNorm, kvRows, firstKvHead * headDim, 'k', eps)
  }
  if (spec.clipQkv !== null) {
    b.emit('clamp', { x: qkv, limit: spec.clipQkv }, { label: 'clip queries, keys and values' })
  }
  const table = b.ropeTable({
    width: spec.rope.width,
    positions: ctx.maxPositions,
    inverseFrequencies: spec.rope.inverseFrequencies,
    attentionFactor: spec.rope.attentionFactor,
  })
  for (const [part, count] of [
    [q, heads],
    [k, kvHeads],
  ] as const) {
    const geometry = { outHeadStride: headDim, xHeadStride: headDim, heads: count, width: spec.rope.width }
    const args = {
      out: part,
      x: part,
      positions: inputs.positions,
      table,
      interleaved: spec.rope.interleaved,
      ...geometry,
    }
    b.emit('rope', args, { label: part === q ? 'rotate queries' : 'rotate keys' })
  }
  const kv = b.buffer({ name: `kv.${layer}`, kind: 'kv', dtype: 'act', rows: ctx.kvSlots, columns: 2 * kvWidth })
  b.emit(
    'store_kv',
    { kv, x: columns(qkv, qWidth, 2 * kvWidth), slots: inputs.slots },
    { label: 'keys and values into the cache' },
  )

  const attended = b.arena('attended', qWidth)
  const { rowSequence, positions, pageTable, pageSize } = inputs
  const sinks = spec.sinks
    ? b.vector(joined(`${layer}.attn.sinks`, [elementsOf(names.sinks, spec.heads, firstHead, heads)]))
    : undefined
  b.emit(
    'attention',
    {
      out: attended,
      q,
      kv,
      batch: { rowSequence, positions, pageTable, pageSize },
      heads,
      kvHeads,
      qkWidth: headDim,
      vWidth: headDim,
      keyOffset: 0,
      valueOffset: kvWidth,
      scale: spec.scale,
      ...(spec.window === null ? {} : { window: spec.window }),
      ...(sinks ? { sinks } : {}),
    },
    { label: spec.window === null ? 'causal attention' : `causal attention, window ${spec.window}` },
  )
  return outputProjection(ctx, names.o, attended, firstHead * headDim, spec.heads * headDim, spec.outputBias)
}

/**
 * Norm over all heads of a row. Over attention-TP each member has a piece: squares are summed over the group first. Heads
 * that are repeated on several members are counted as often in the mean's denominator, so the mean is the same.
 */
function rowNorm(
  ctx: LayerContext,
  x: Ref,
  name: string,
  total: number,
  from: number,
  part: 'q' | 'k',
  eps: number,
): void {
  const { builder: b, layer, attnTp } = ctx
  const piece = elementsOf(`${name}.weight`, total, from, x.width)
  const weight = b.vector(joined(`${layer}.attn.${part}_norm`, [piece]))
  if (attnTp.count === 1) {
    b.emit('rms_norm', { out: x, x, weight, width: total, groups: 1, eps }, { label: 'norm over all heads' })
    return
  }
  const sums = b.arena(`${part}_squares`, 1, 'tokens', 'f32')
  b.emit('square_sum', { out: sums, x }, { label: 'squares of the own heads' })
  b.emit('all_reduce', { x: sums, group: 'attnTp' }, { label: 'squares of all heads' })
  const args = { out: x, x, sums, weight, total: x.width * attnTp.count, eps }
  b.emit('rms_scale', args, { label: 'norm over all heads' })
}

/** x · Wᵀ of the columns of o_proj that belong to this rank's heads. The bias is added by attention-TP rank 0 only. */
export function outputProjection(
  ctx: LayerContext,
  name: string,
  x: Ref,
  from: number,
  total: number,
  hasBias: boolean,
): Ref {
  const { builder: b, layer, hidden } = ctx
  const out = b.arena('attn_out', hidden)
  const piece = { ...rowsOf(`${name}.weight`, [hidden, total]), columns: { from, count: x.width } }
  const weight = b.matrix(stacked(`${layer}.attn.o`, x.width, [piece]))
  const bias =
    hasBias && ctx.attnTp.index === 0
      ? b.vector(joined(`${layer}.attn.o_bias`, [elementsOf(`${name}.bias`, hidden)]))
      : undefined
  b.emit('linear', { out, x, weight, ...(bias ? { bias } : {}) }, { label: 'output projection' })
  return out
}
