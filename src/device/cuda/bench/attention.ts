// Benchmarks of attention: decode and prompts of grouped heads (Qwen3-30B-A3B's 32 over 4, heads of 128), latents of 16 and 128 heads, and
// widths that no kernel is made for (the latent of models/demo, grouped heads of 96).
// Results are compared with the plain kernel's on a spread of rows.
import type { Operand } from '../../ops.js'
import { type AttentionSpec, type FastAttentionOptions, fastAttention } from '../ops/attention.js'
import { attentionStep } from '../ops/attention-step.js'
import { plainAttentionOps } from '../ops/plain-attention.js'
import { type BenchDevice, figure, type KernelBench, type KernelFigure } from './bench.js'

/** Caches of further layers are taken in turn from this much memory, more than the L2 cache holds. */
const BEYOND_CACHE = 256 << 20
const PAGE_SIZE = 16
/** Rows compared, from each of this many places in the batch. */
const PLACES = 4
const ROWS_A_PLACE = 16

interface Model {
  readonly heads: number
  readonly kvHeads: number
  readonly qkWidth: number
  readonly vWidth: number
}

const QWEN: Model = { heads: 32, kvHeads: 4, qkWidth: 128, vWidth: 128 }
const LATENT_16: Model = { heads: 16, kvHeads: 1, qkWidth: 576, vWidth: 512 }
const LATENT_128: Model = { heads: 128, kvHeads: 1, qkWidth: 576, vWidth: 512 }
const DEMO: Model = { heads: 8, kvHeads: 1, qkWidth: 80, vWidth: 64 }
const HEADS_OF_96: Model = { heads: 32, kvHeads: 8, qkWidth: 96, vWidth: 96 }

/** Rows of each sequence: the last `rows` of `context` positions. */
interface Sequence {
  readonly context: number
  readonly rows: number
}

const same = (count: number, context: number, rows = 1): Sequence[] =>
  Array.from({ length: count }, () => ({ context, rows }))

interface Workload {
  readonly shape: string
  readonly model: Model
  readonly batch: readonly Sequence[]
}

const DECODE: readonly Workload[] = [
  ...[1, 8, 32, 64, 128, 256].map(n => ({ shape: `${n} × 512`, model: QWEN, batch: same(n, 512) })),
  { shape: '1 × 32768', model: QWEN, batch: same(1, 32768) },
  { shape: '16 × 8192', model: QWEN, batch: same(16, 8192) },
  { shape: '127 × 512 and 1 × 32768', model: QWEN, batch: [...same(127, 512), ...same(1, 32768)] },
  ...[1, 32, 128].flatMap(n => [
    { shape: `latent, 16 heads, ${n} × 1024`, model: LATENT_16, batch: same(n, 1024) },
    { shape: `latent, 128 heads, ${n} × 1024`, model: LATENT_128, batch: same(n, 1024) },
    { shape: `latent of 64 + 16, 8 heads, ${n} × 480`, model: DEMO, batch: same(n, 480) },
    { shape: `32 heads of 96 over 8, ${n} × 512`, model: HEADS_OF_96, batch: same(n, 512) },
  ]),
  { shape: 'latent of 64 + 16, 8 heads, 1 × 32768', model: DEMO, batch: same(1, 32768) },
]

const PREFILL: readonly Workload[] = [
  { shape: '4 × 4096', model: QWEN, batch: same(4, 4096, 4096) },
  { shape: '16 × 1024', model: QWEN, batch: same(16, 1024, 1024) },
  { shape: '2048 after 6144', model: QWEN, batch: same(1, 8192, 2048) },
  { shape: '4096 and 64 single rows of 512', model: QWEN, batch: [...same(1, 4096, 4096), ...same(64, 512)] },
  { shape: 'latent, 16 heads, 1 × 2048', model: LATENT_16, batch: same(1, 2048, 2048) },
  { shape: 'latent, 128 heads, 1 × 2048', model: LATENT_128, batch: same(1, 2048, 2048) },
  { shape: 'latent of 64 + 16, 8 heads, 1 × 2048', model: DEMO, batch: same(1, 2048, 2048) },
  { shape: '32 heads of 96 over 8, 1 × 2048', model: HEADS_OF_96, batch: same(1, 2048, 2048) },
]

/** Pure: bytes that must be read and written once, and the operations of both products. */
export function attentionCost({ model, batch }: Workload): { bytes: number; flop: number } {
  const { heads, kvHeads, qkWidth, vWidth } = model
  const rows = batch.reduce((sum, s) => sum + s.rows, 0)
  const positions = batch.reduce((sum, s) => sum + s.context, 0)
  // Row i of the last `rows` sees context - rows + 1 + i positions.
  const seen = batch.reduce((sum, s) => sum + s.rows * s.context - (s.rows * (s.rows - 1)) / 2, 0)
  const kvColumns = qkWidth === vWidth ? 2 * kvHeads * qkWidth : qkWidth
  return {
    bytes: 2 * (positions * kvColumns + rows * heads * (qkWidth + vWidth)),
    flop: 2 * heads * (qkWidth + vWidth) * seen,
  }
}

interface Variant {
  readonly name: string
  readonly options: FastAttentionOptions
}

function* measure(
  b: BenchDevice,
  workloads: readonly Workload[],
  decode: boolean,
  variants: (work: Workload) => readonly Variant[],
): Iterable<KernelFigure> {
  for (const work of workloads) {
    const { heads, kvHeads, qkWidth, vWidth } = work.model
    const latent = vWidth < qkWidth
    const rows = work.batch.flatMap((s, i) =>
      Array.from({ length: s.rows }, (_, r) => [i, s.context - s.rows + r] as const),
    )
    const pagesEach = Math.ceil(Math.max(...work.batch.map(s => s.context)) / PAGE_SIZE)
    const pagesOf = work.batch.map(s => Math.ceil(s.context / PAGE_SIZE))
    const pages = pagesOf.reduce((a, c) => a + c, 0)
    // 7919 is a prime that divides none of these numbers of pages: every page once, scattered.
    const table = new Int32Array(work.batch.length * pagesEach)
    let next = 0
    pagesOf.forEach((count, s) => {
      for (let p = 0; p < count; p++) table[s * pagesEach + p] = (next++ * 7919) % pages
    })
    const kvStride = latent ? qkWidth : 2 * kvHeads * qkWidth
    const slots = pages * PAGE_SIZE
    const layers = Math.min(64, Math.max(1, Math.ceil(BEYOND_CACHE / (slots * kvStride * 2))))
    const cache = b.random(layers * slots * kvStride)
    const ints = (data: Int32Array, stride: number): Operand => {
      const span = b.lend(data.byteLength)
      b.context.upload(b.kernels.addressOf(span), data)
      return { span, offset: 0, stride }
    }
    const half = (span: Operand['span'], stride: number, offset = 0): Operand => ({
      span,
      dtype: 'bf16',
      offset,
      stride,
    })
    const spec: AttentionSpec = {
      out: half(b.lend(rows.length * heads * vWidth * 2), heads * vWidth),
      q: half(b.random(rows.length * heads * qkWidth), heads * qkWidth),
      kv: half(cache, kvStride),
      batch: {
        rowSequence: ints(
          Int32Array.from(rows, r => r[0]),
          1,
        ),
        positions: ints(
          Int32Array.from(rows, r => r[1]),
          1,
        ),
        pageTable: ints(table, pagesEach),
        pageSize: PAGE_SIZE,
      },
      ...{ heads, kvHeads, qkWidth, vWidth, keyOffset: 0, valueOffset: latent ? 0 : kvHeads * qkWidth },
      scale: 2 / Math.sqrt(qkWidth),
    }
    attentionStep(b.kernels).decodeOnly = decode
    for (const { name, options } of variants(work)) {
      const bound = Array.from({ length: layers }, (_, i) =>
        fastAttention(b.kernels, { ...spec, kv: half(cache, kvStride, i * slots * kvStride) }, options),
      )
      if (!bound[0]) continue
      const time = b.timeInGraph(bound.map(run => () => run!(rows.length)))
      bound[0](rows.length)
      yield figure(name, work.shape, time, attentionCost(work), compare(b, spec, rows.length))
    }
    b.release()
  }
}

/**
 * The plain kernel on rows at the beginning, at the end and between, against what `spec.out` holds.
 * @returns the largest |difference| over 2^-7 of the plain result plus 2^-8: values are below 1 and probabilities sum to 1, so rounding
 * probabilities and results to bf16 stays well below
 */
function compare(b: BenchDevice, spec: AttentionSpec, rows: number): number {
  const { stride, span } = spec.out
  const count = Math.min(rows, ROWS_A_PLACE)
  const read = (from: Operand, row: number): Float32Array => {
    b.kernels.stream.synchronize()
    const bits = new Uint16Array(count * stride)
    b.context.download(bits, b.kernels.addressOf(from.span) + row * stride * 2)
    return new Float32Array(Uint32Array.from(bits, w => w << 16).buffer)
  }
  const plain: Operand = { ...spec.out, span: b.lend(span.byteLength) }
  let worst = 0
  for (let place = 0; place < PLACES; place++) {
    const first = Math.floor(((rows - count) * place) / (PLACES - 1))
    const from = (o: Operand): Operand => ({ ...o, offset: o.offset + first * o.stride })
    const { batch } = spec
    plainAttentionOps(b.kernels).attention({
      ...spec,
      ...{ out: from(plain), q: from(spec.q) },
      batch: { ...batch, rowSequence: from(batch.rowSequence), positions: from(batch.positions) },
    })(count)
    const want = read(plain, first)
    const got = read(spec.out, first)
    got.forEach((v, i) => {
      const ratio = Math.abs(v - want[i]!) / (2 ** -7 * Math.abs(want[i]!) + 2 ** -8)
      if (!(ratio <= worst)) worst = Number.isNaN(ratio) ? Number.POSITIVE_INFINITY : ratio
    })
  }
  return worst
}

/** As chosen, and for larger batches with the keys of a row cut into a given number of parts at most. */
const decodeVariants = ({ model, batch }: Workload): Variant[] => {
  const name = 'attention decode'
  const cut = (splits: number, minTiles: number): Variant => ({
    name: `${name}, ${splits} parts of ${minTiles}`,
    options: { cut: rows => ({ items: rows, splits, minTiles }) },
  })
  const several = model === QWEN && batch.length >= 8 ? [cut(1, 1), cut(2, 1), cut(4, 1), cut(8, 1), cut(16, 16)] : []
  return [
    { name, options: { overlapping: false } },
    { name: `${name}, overlapping`, options: { overlapping: true } },
    ...several,
  ]
}

const prefillVariants = ({ model }: Workload): Variant[] =>
  (model === QWEN ? (['warp', 'warpgroup'] as const) : (['warp'] as const)).map(prompts => ({
    name: `attention prefill, ${prompts}`,
    options: { prompts },
  }))

export const attentionBenches: readonly KernelBench[] = [
  { name: 'attention-decode', run: b => measure(b, DECODE, true, decodeVariants) },
  { name: 'attention-prefill', run: b => measure(b, PREFILL, false, prefillVariants) },
]
