// Multi-head latent attention in its absorbed form, for prefill and decode alike (one form a run, so that batching
// never changes a bit). The cache holds one row a position: the normalised latent and the rotated shared key. Queries are
// taken into the latent space by W_uk of each head, values leave it by W_uv; both are rows of kv_b_proj.
// The cache is whole on every attention-TP rank; only heads are cut.
import type { MlaSpec } from '../formats/model-spec.js'
import { columns, type Ref } from '../program/index.js'
import { elementsOf, joined, type LayerContext, rowsOf, stacked } from './context.js'
import { outputProjection } from './gqa.js'

export interface MlaNames {
  readonly kind: 'mla'
  /** Without query compression. */
  readonly q: string
  readonly qA: string
  readonly qANorm: string
  readonly qB: string
  readonly kvA: string
  readonly kvANorm: string
  readonly kvB: string
  readonly o: string
}

/** The inner norms of the reference implementations use this constant, whatever the model's own epsilon. */
const INNER_EPS = 1e-6

export const mlaKvColumns = (spec: MlaSpec): number => spec.kvLoraRank + spec.rope.width

/** @returns the attention output [tokens, hidden], a partial sum over attention-TP. */
export function mlaAttention(ctx: LayerContext, spec: MlaSpec, names: MlaNames, x: Ref): Ref {
  const { builder: b, inputs, layer } = ctx
  const { kvLoraRank, nopeDim, vDim } = spec
  const ropeDim = spec.rope.width
  const heads = spec.heads / ctx.attnTp.count
  const firstHead = ctx.attnTp.index * heads
  const qkDim = nopeDim + ropeDim
  const latentDim = kvLoraRank + ropeDim

  const { q, compressedKv } = projectInputs(ctx, spec, names, x, firstHead * qkDim, heads * qkDim)

  const table = b.ropeTable({
    width: ropeDim,
    positions: ctx.maxPositions,
    inverseFrequencies: spec.rope.inverseFrequencies,
    attentionFactor: spec.rope.attentionFactor,
  })
  const rope = { positions: inputs.positions, table, width: ropeDim, interleaved: spec.rope.interleaved }
  const sharedKey = columns(compressedKv, kvLoraRank, ropeDim)
  b.emit(
    'rope',
    { out: sharedKey, outHeadStride: ropeDim, x: sharedKey, xHeadStride: ropeDim, heads: 1, ...rope },
    { label: 'rotate the shared key' },
  )
  const kv = b.buffer({ name: `kv.${layer}`, kind: 'kv', dtype: 'act', rows: ctx.kvSlots, columns: latentDim })
  b.emit('store_kv', { kv, x: compressedKv, slots: inputs.slots }, { label: 'latent and shared key into the cache' })

  const kvBShape = [spec.heads * (nopeDim + vDim), kvLoraRank] as const
  const headRows = Array.from({ length: heads }, (_, h) => (firstHead + h) * (nopeDim + vDim))
  const absorb = b.matrix({
    name: `${layer}.attn.w_uk`,
    n: kvLoraRank,
    k: nopeDim,
    precision: 'model',
    pieces: headRows.map(from => [
      {
        tensor: `${names.kvB}.weight`,
        shape: kvBShape,
        transposed: true,
        rows: { from: 0, count: kvLoraRank },
        columns: { from, count: nopeDim },
      },
    ]),
  })
  const expand = b.matrix({
    name: `${layer}.attn.w_uv`,
    n: vDim,
    k: kvLoraRank,
    precision: 'model',
    pieces: headRows.map(from => [rowsOf(`${names.kvB}.weight`, kvBShape, from + nopeDim, vDim)]),
  })

  const latentQ = b.arena('latent_q', heads * latentDim)
  b.emit(
    'head_linear',
    { out: latentQ, outHeadStride: latentDim, x: q, xHeadStride: qkDim, weight: absorb },
    { label: 'queries into the latent space' },
  )
  b.emit(
    'rope',
    {
      out: columns(latentQ, kvLoraRank, latentQ.width - kvLoraRank),
      outHeadStride: latentDim,
      x: columns(q, nopeDim, q.width - nopeDim),
      xHeadStride: qkDim,
      heads,
      ...rope,
    },
    { label: 'rotate queries' },
  )
  const attended = b.arena('attended', heads * kvLoraRank)
  const { rowSequence, positions, pageTable, pageSize } = inputs
  b.emit(
    'attention',
    {
      out: attended,
      q: latentQ,
      kv,
      batch: { rowSequence, positions, pageTable, pageSize },
      heads,
      kvHeads: 1,
      qkWidth: latentDim,
      vWidth: kvLoraRank,
      keyOffset: 0,
      valueOffset: 0,
      scale: spec.scale,
    },
    { label: 'causal attention over latents' },
  )
  const values = b.arena('values', heads * vDim)
  b.emit(
    'head_linear',
    { out: values, outHeadStride: vDim, x: attended, xHeadStride: kvLoraRank, weight: expand },
    { label: 'values out of the latent space' },
  )
  return outputProjection(ctx, names.o, values, firstHead * vDim, spec.heads * vDim, spec.outputBias)
}

/** Queries [tokens, heads·(nope+rope)] and the normalised latent with the unrotated shared key [tokens, latent+rope]. */
function projectInputs(ctx: LayerContext, spec: MlaSpec, names: MlaNames, x: Ref, qFrom: number, qCount: number) {
  const { builder: b, layer, hidden } = ctx
  const rank = spec.qLoraRank
  const kvWidth = mlaKvColumns(spec)
  const qTotal = spec.heads * (spec.nopeDim + spec.rope.width)
  const q = b.arena('q', qCount)
  const kvPiece = rowsOf(`${names.kvA}.weight`, [kvWidth, hidden])
  const kvBias = elementsOf(`${names.kvA}.bias`, kvWidth)
  let compressedKv: Ref
  if (rank === null) {
    compressedKv = b.arena('compressed_kv', kvWidth)
    const qWeight = b.matrix(
      stacked(`${layer}.attn.q`, hidden, [rowsOf(`${names.q}.weight`, [qTotal, hidden], qFrom, qCount)]),
    )
    b.emit('linear', { out: q, x, weight: qWeight }, { label: 'query projection' })
    const weight = b.matrix(stacked(`${layer}.attn.kv_a`, hidden, [kvPiece]))
    const bias = spec.qkvBias ? { bias: b.vector(joined(`${layer}.attn.kv_a_bias`, [kvBias])) } : {}
    b.emit('linear', { out: compressedKv, x, weight, ...bias }, { label: 'key-value compression' })
  } else {
    const both = b.arena('compressed', rank + kvWidth)
    const weight = b.matrix(
      stacked(`${layer}.attn.qkv_a`, hidden, [rowsOf(`${names.qA}.weight`, [rank, hidden]), kvPiece]),
    )
    const bias = spec.qkvBias
      ? { bias: b.vector(joined(`${layer}.attn.qkv_a_bias`, [elementsOf(`${names.qA}.bias`, rank), kvBias])) }
      : {}
    b.emit('linear', { out: both, x, weight, ...bias }, { label: 'query and key-value compression' })
    const compressedQ = columns(both, 0, rank)
    compressedKv = columns(both, rank, kvWidth)
    const norm = b.vector(joined(`${layer}.attn.q_a_norm`, [elementsOf(`${names.qANorm}.weight`, rank)]))
    b.emit(
      'rms_norm',
      { out: compressedQ, x: compressedQ, weight: norm, width: rank, groups: 1, eps: INNER_EPS },
      { label: 'norm of the query latent' },
    )
    const qB = b.matrix(
      stacked(`${layer}.attn.q_b`, rank, [rowsOf(`${names.qB}.weight`, [qTotal, rank], qFrom, qCount)]),
    )
    b.emit('linear', { out: q, x: compressedQ, weight: qB }, { label: 'query expansion' })
  }
  const latent = columns(compressedKv, 0, spec.kvLoraRank)
  const norm = b.vector(joined(`${layer}.attn.kv_a_norm`, [elementsOf(`${names.kvANorm}.weight`, spec.kvLoraRank)]))
  b.emit(
    'rms_norm',
    { out: latent, x: latent, weight: norm, width: spec.kvLoraRank, groups: 1, eps: INNER_EPS },
    { label: 'norm of the key-value latent' },
  )
  return { q, compressedKv }
}
