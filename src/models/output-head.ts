// The output head: the rows to sample, their logits, and the draw. The vocabulary is cut over all ranks (rows of all DP
// ranks gathered) or, with --enable-dp-lm-head, over attention-TP only; every rank ends with whole rows of its own tokens.
import type { ModelSpec } from '../formats/model-spec.js'
import { type BatchInputs, cut, rowsOf, type Shard, stacked } from '../layers/index.js'
import type { ProgramBuilder, ProgramGroup, Ref } from '../program/index.js'
import type { RankLayout } from './layout.js'

export function outputHead(
  b: ProgramBuilder,
  spec: ModelSpec,
  layout: RankLayout,
  inputs: BatchInputs,
  final: Ref,
  embedding: string,
  lmHead: string,
): void {
  const { sizes, rank, dpLmHead } = layout
  const [hidden, vocab] = [spec.hiddenSize, spec.vocabSize]
  const logits = b.buffer({ name: 'logits', kind: 'output', dtype: 'f32', rows: 'logitRows', columns: vocab })
  const last = b.arena('last', hidden, 'logitRows')
  b.emit(
    'gather_rows',
    { out: last, x: final, index: inputs.logitIndex },
    { rows: 'logitRows', label: 'rows to sample' },
  )

  const shard: Shard = dpLmHead ? { index: rank.attnTp, count: sizes.attnTp } : { index: rank.rank, count: sizes.tp }
  if (shard.count === 1) {
    const tensor = spec.tieWordEmbeddings ? null : lmHead
    const weight = tensor === null ? embedding : b.matrix(stacked('lm_head', hidden, [rowsOf(tensor, [vocab, hidden])]))
    b.emit('linear', { out: logits, x: last, weight }, { rows: 'logitRows', label: 'logits' })
  } else {
    shardedLogits(b, spec, layout, shard, last, logits, spec.tieWordEmbeddings ? 'model.embed_tokens.weight' : lmHead)
  }

  const sampled = b.buffer({ name: 'sampled', kind: 'output', dtype: 'i32', rows: 'logitRows', columns: 1 })
  const logprob = b.buffer({ name: 'logprob', kind: 'output', dtype: 'f32', rows: 'logitRows', columns: 1 })
  const sampling = { out: sampled, logits, params: inputs.sampleParams, logprob }
  b.emit('sample', sampling, { rows: 'logitRows', label: 'draw tokens' })
}

function shardedLogits(
  b: ProgramBuilder,
  spec: ModelSpec,
  { sizes, dpLmHead }: RankLayout,
  shard: Shard,
  last: Ref,
  logits: Ref,
  tensor: string,
): void {
  const { from, count } = cut(spec.vocabSize, shard)
  const weight = b.matrix(
    stacked(`lm_head.${shard.index}of${shard.count}`, spec.hiddenSize, [
      rowsOf(tensor, [spec.vocabSize, spec.hiddenSize], from, count),
    ]),
  )
  const gathered = !dpLmHead && sizes.attnDp > 1
  const rows = gathered ? 'gatheredLogits' : 'logitRows'
  let x = last
  if (gathered) {
    x = b.arena('last.gathered', spec.hiddenSize, 'gatheredLogits')
    const args = { out: x, x: last, group: 'attnDp', counts: 'logits' } as const
    b.emit('all_gather', args, { rows: 'logitRows', label: 'rows to sample of all DP ranks' })
  }
  const part = b.arena('logits.part', count, rows, 'f32')
  b.emit('linear', { out: part, x, weight }, { rows, label: 'logits of this part of the vocabulary' })
  const widths = Array.from(
    { length: shard.count },
    (_, index) => cut(spec.vocabSize, { index, count: shard.count }).count,
  )
  const group: ProgramGroup = dpLmHead ? 'attnTp' : 'tp'
  b.emit(
    'gather_columns',
    { out: logits, x: part, group, widths, counts: gathered ? 'logits' : null },
    { rows: 'logitRows', label: 'whole rows of logits of the own tokens' },
  )
}
