// Benchmarks of kernels that move or gate rows: embedding, rope by itself, gated activation. All are bound by memory.
// Sizes of Qwen3-30B-A3B; the last row of each result is compared with float64.
import type { Operand } from '../../ops.js'
import { plainCudaOps } from '../cuda-ops.js'
import { type BenchDevice, figure, type KernelBench, type KernelFigure } from './bench.js'
import { BenchOperands, worstOf } from './operands.js'

const ROWS = [1, 128, 16_384] as const
const [HIDDEN, INTER, VOCAB, HEADS, HEAD] = [2048, 768, 32_768, 32, 128]

function* embedding(b: BenchDevice): Iterable<KernelFigure> {
  for (const rows of ROWS) {
    const t = new BenchOperands(b)
    const table = b.matrix(VOCAB, HIDDEN, 1)
    const list = Int32Array.from({ length: rows }, (_, r) => (r * 7919) % VOCAB)
    const out = t.half(rows, HIDDEN)
    const kernel = plainCudaOps(b.kernels).embed({ out, ids: t.ints(list), table })
    kernel(rows)
    const source: Operand = { span: table.span, dtype: 'bf16', offset: 0, stride: HIDDEN }
    const want = Array.from(t.read(source, 1, HIDDEN, list[rows - 1]!))
    const worst = worstOf(t.read(out, 1, HIDDEN, rows - 1), want)
    const cost = { bytes: rows * HIDDEN * (2 + 2), flop: 0 }
    yield figure('embed', `${rows} × ${HIDDEN}`, t.time(kernel, rows), cost, worst)
    b.release()
  }
}

function* turning(b: BenchDevice): Iterable<KernelFigure> {
  for (const rows of ROWS) {
    const t = new BenchOperands(b)
    const width = HEADS * HEAD
    const [x, out] = [t.half(rows, width), t.half(rows, width)]
    // One position, a quarter turn for every pair: (u, v) becomes (-v, u).
    const table = new Float32Array(HEAD).fill(1, HEAD / 2)
    const kernel = plainCudaOps(b.kernels).rope({
      ...{ out, outHeadStride: HEAD, x, xHeadStride: HEAD, heads: HEADS, width: HEAD },
      ...{ positions: t.ints(new Int32Array(rows)), cosSin: t.wide(table, HEAD).span, interleaved: false },
    })
    kernel(rows)
    const source = t.read(x, 1, width, rows - 1)
    const want = Array.from(source, (_, c) => (c % HEAD < HEAD / 2 ? -source[c + HEAD / 2]! : source[c - HEAD / 2]!))
    const worst = worstOf(t.read(out, 1, width, rows - 1), want)
    const cost = { bytes: rows * width * (2 + 2), flop: 0 }
    yield figure('rope', `${rows} × ${HEADS} heads`, t.time(kernel, rows), cost, worst)
    b.release()
  }
}

function* gates(b: BenchDevice): Iterable<KernelFigure> {
  for (const rows of ROWS) {
    const t = new BenchOperands(b)
    const [x, out] = [t.half(rows, 2 * INTER), t.half(rows, INTER)]
    const kernel = plainCudaOps(b.kernels).gatedActivation({ out, x, width: INTER, activation: { kind: 'silu' } })
    kernel(rows)
    const source = t.read(x, 1, 2 * INTER, rows - 1)
    const want = Array.from(
      { length: INTER },
      (_, c) => (source[c]! / (1 + Math.exp(-source[c]!))) * source[INTER + c]!,
    )
    const worst = worstOf(t.read(out, 1, INTER, rows - 1), want)
    const cost = { bytes: rows * INTER * 2 * 3, flop: 0 }
    yield figure('gated_activation', `${rows} × ${INTER}`, t.time(kernel, rows), cost, worst)
    b.release()
  }
}

export const rowBenches: readonly KernelBench[] = [
  { name: 'embed', run: embedding },
  { name: 'rope', run: turning },
  { name: 'gate', run: gates },
]
