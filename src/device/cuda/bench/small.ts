// Benchmarks of what lies between the large products, in the sizes of Qwen3-30B-A3B (hidden 2048, 32 heads over 4 of 128, 128
// experts, top-8, 151,936 tokens) and of a DeepSeek latent (512 + 64). The last row of each result is compared with float64.
import type { RouterSpec } from '../../ops.js'
import { plainCudaOps } from '../cuda-ops.js'
import { type BenchDevice, figure, type KernelBench, type KernelFigure } from './bench.js'
import { BenchOperands, worstOf } from './operands.js'

const ROWS = [1, 32, 128, 16_384] as const
const [HIDDEN, HEADS, KV_HEADS, HEAD, EXPERTS, TOP_K, VOCAB] = [2048, 32, 4, 128, 128, 8, 151_936]
const [LATENT, ROPE] = [512, 64]
const EPS = 1e-6

const normed = (x: readonly number[], weight: Float32Array): number[] => {
  const inverse = 1 / Math.sqrt(x.reduce((s, v) => s + v * v, 0) / x.length + EPS)
  return x.map((v, c) => v * inverse * weight[c]!)
}

function* norms(b: BenchDevice): Iterable<KernelFigure> {
  for (const rows of ROWS) {
    const t = new BenchOperands(b)
    const ops = plainCudaOps(b.kernels)
    const x = t.half(rows, HIDDEN)
    const start = t.numbers(rows * HIDDEN)
    const weights = t.numbers(HIDDEN)
    const weight = t.vector(weights)
    const args = { residual: t.wide(start, HIDDEN), x, out: t.half(rows, HIDDEN), weight, width: HIDDEN, eps: EPS }
    const kernel = ops.addRmsNorm(args)
    kernel(rows)
    const last = rows - 1
    const added = t.read(x, 1, HIDDEN, last)
    const sum = Array.from(added, (v, c) => v + start[last * HIDDEN + c]!)
    const worst = worstOf(t.read(args.out, 1, HIDDEN, last), normed(sum, weights))
    // Residual read and written, x read, out written.
    const cost = { bytes: rows * HIDDEN * (4 + 4 + 2 + 2) + HIDDEN * 4, flop: 0 }
    yield figure('add_rms_norm', `${rows} × ${HIDDEN}`, t.time(kernel, rows), cost, worst)
    b.release()
  }
}

function* toCache(b: BenchDevice): Iterable<KernelFigure> {
  for (const rows of ROWS) {
    const t = new BenchOperands(b)
    const ops = plainCudaOps(b.kernels)
    const slots = t.ints(Int32Array.from({ length: rows }, (_, r) => r))
    const positions = t.ints(new Int32Array(rows))
    const all = HEADS + 2 * KV_HEADS
    const last = rows - 1
    const turn = (width: number) => {
      // Position 0: cosines 1, sines 0.
      const table = new Float32Array(width).fill(1, 0, width / 2)
      return { width, cosSin: t.wide(table, width).span, interleaved: false }
    }
    const [q, k] = [t.numbers(HEAD), t.numbers(HEAD)]
    const x = t.half(rows, all * HEAD)
    const kv = t.half(rows, 2 * KV_HEADS * HEAD)
    const before = Array.from(t.read(x, 1, all * HEAD, last))
    const norms = { q: t.vector(q), k: t.vector(k), eps: EPS }
    const sizes = { heads: HEADS, kvHeads: KV_HEADS, headWidth: HEAD }
    const heads = ops.qkNormRopeStore({ x, kv, slots, positions, ...sizes, norms, rope: turn(HEAD) })
    heads(rows)
    const wanted = (head: number) => {
      const part = before.slice(head * HEAD, (head + 1) * HEAD)
      return head < HEADS ? normed(part, q) : head < HEADS + KV_HEADS ? normed(part, k) : part
    }
    const [queries, stored] = [t.read(x, 1, HEADS * HEAD, last), t.read(kv, 1, 2 * KV_HEADS * HEAD, last)]
    const worst = Math.max(
      worstOf(queries, Array.from({ length: HEADS }, (_, h) => wanted(h)).flat()),
      worstOf(stored, Array.from({ length: 2 * KV_HEADS }, (_, h) => wanted(HEADS + h)).flat()),
    )
    const bytes = rows * 2 * 2 * all * HEAD
    yield figure('qk_norm_rope_store', `${rows} × ${all} heads`, t.time(heads, rows), { bytes, flop: 0 }, worst)

    const w = t.numbers(LATENT)
    const both = t.half(rows, LATENT + ROPE)
    const cache = t.half(rows, LATENT + ROPE)
    const norm = { weight: t.vector(w), eps: EPS }
    const latent = ops.latentNormRopeStore({
      x: both,
      kv: cache,
      slots,
      positions,
      latent: LATENT,
      norm,
      rope: turn(ROPE),
    })
    const source = Array.from(t.read(both, 1, LATENT + ROPE, last))
    latent(rows)
    const want = [...normed(source.slice(0, LATENT), w), ...source.slice(LATENT)]
    const cost = { bytes: rows * 2 * 2 * (LATENT + ROPE), flop: 0 }
    const off = worstOf(t.read(cache, 1, LATENT + ROPE, last), want)
    yield figure('latent_norm_rope_store', `${rows} × ${LATENT + ROPE}`, t.time(latent, rows), cost, off)
    b.release()
  }
}

function* routing(b: BenchDevice): Iterable<KernelFigure> {
  const spec: RouterSpec = {
    experts: EXPERTS,
    topK: TOP_K,
    scoring: 'softmax',
    groups: 1,
    topGroups: 1,
    groupScore: 'max',
    normalize: true,
    scale: 1,
  }
  for (const rows of ROWS) {
    const t = new BenchOperands(b)
    const values = t.numbers(rows * EXPERTS, 4)
    const [ids, weights] = [t.empty(rows, TOP_K), t.empty(rows, TOP_K)]
    const kernel = plainCudaOps(b.kernels).router({ ids, weights, logits: t.wide(values, EXPERTS), spec })
    kernel(rows)
    const last = rows - 1
    const row = values.subarray(last * EXPERTS, rows * EXPERTS)
    const best = [...row.keys()].sort((i, j) => row[j]! - row[i]! || i - j).slice(0, TOP_K)
    const same = t
      .readInts(ids, rows * TOP_K)
      .subarray(last * TOP_K)
      .every((id, s) => id === best[s])
    const total = best.reduce((s, e) => s + Math.exp(row[e]!), 0)
    const want = best.map(e => Math.exp(row[e]!) / total)
    const worst = same ? worstOf(t.read(weights, 1, TOP_K, last), want) : Number.POSITIVE_INFINITY
    const cost = { bytes: rows * (EXPERTS + 2 * TOP_K) * 4, flop: 0 }
    yield figure('router', `${rows} × ${TOP_K} of ${EXPERTS}`, t.time(kernel, rows), cost, worst)
    b.release()
  }
}

const DRAWS = [
  ['greedy', 0, 1, 0],
  ['temperature 1', 1, 1, 0],
  ['top-k 50', 1, 1, 50],
  ['top-p 0.9', 1, 0.9, 0],
] as const

function* drawing(b: BenchDevice): Iterable<KernelFigure> {
  for (const rows of [1, 32, 128]) {
    const t = new BenchOperands(b)
    const values = t.numbers(rows * VOCAB, 10)
    const logits = t.wide(values, VOCAB)
    const [out, logprob] = [t.empty(rows, 1), t.empty(rows, 1)]
    for (const [name, temperature, topP, topK] of DRAWS) {
      const params = new Float32Array(rows * 8)
      for (let r = 0; r < rows; r++) params.set([temperature, topP, 0, topK, 0, 0, 0, 0], r * 8)
      const kernel = plainCudaOps(b.kernels).sample({ out, logits, params: t.wide(params, 8), vocab: VOCAB, logprob })
      kernel(rows)
      // The log-probability of what was drawn; which token is drawn is what tests are for.
      const row = values.subarray((rows - 1) * VOCAB)
      const top = row.reduce((most, v) => Math.max(most, v), Number.NEGATIVE_INFINITY)
      const sum = row.reduce((s, v) => s + Math.exp(v - top), 0)
      const token = t.readInts(out, rows)[rows - 1]!
      const worst = worstOf(t.read(logprob, 1, 1, rows - 1), [row[token]! - top - Math.log(sum)])
      const cost = { bytes: rows * VOCAB * 4, flop: 0 }
      yield figure(`sample, ${name}`, `${rows} × ${VOCAB}`, t.time(kernel, rows), cost, worst)
    }
    b.release()
  }
}

export const smallBenches: readonly KernelBench[] = [
  { name: 'norm', run: norms },
  { name: 'to-cache', run: toCache },
  { name: 'router', run: routing },
  { name: 'sample', run: drawing },
]
