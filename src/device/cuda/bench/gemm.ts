// Benchmarks of products: grouped over many rows and over few (`masked`), dense over few, and the routed experts of a layer.
import { CounterRandom, STREAM } from '../../../runtime/random.js'
import type { PackedMatrix } from '../../ops.js'
import { fastExperts } from '../ops/experts-fast.js'
import { bindGemv } from '../ops/gemv.js'
import { bindGroupedGemm, type GroupedVariant, mostTileRows, rowsOfTile } from '../ops/grouped-gemm.js'
import { type BenchDevice, figure, type KernelBench, type KernelFigure } from './bench.js'

const SAMPLES = 65536
/** More than the L2 cache holds: weights are taken in turn from this much memory. */
const BEYOND_CACHE = 256 << 20

interface Result {
  readonly x: number
  readonly xStride: number
  readonly weight: PackedMatrix
  readonly out: number
  readonly outStride: number
  readonly f32?: boolean
  readonly gated: boolean
  readonly tiles: number
  readonly tileCount: number
}

/** Compares a spread of results with sums made anew on the device. @returns the largest |difference| / bound */
function check(b: BenchDevice, r: Result): number {
  const worst = b.put(new Int32Array(2))
  const n = r.gated ? r.weight.n / 2 : r.weight.n
  b.kernels
    .kernel('bench.cu', 'bench_check')
    .bind(
      [
        ...(['u64', 'u64', 'u64', 'u64', 'u64', 'u64', 'i32', 'u64', 'u64', 'i32', 'i32'] as const),
        ...(['i32', 'i32', 'u32', 'u64'] as const),
      ],
      [
        ...[r.x, r.xStride, b.kernels.addressOf(r.weight.span), r.weight.strideBytes, r.out, r.outStride],
        ...[r.f32 ? 1 : 0, r.tiles, r.tileCount, n, r.weight.k, r.gated ? 1 : 0, SAMPLES, 7, worst],
      ],
    )
    .launch([SAMPLES / 8, 1, 1], 256)
  b.kernels.stream.synchronize()
  const got = new Float32Array(2)
  b.context.download(got, worst)
  return got[0]!
}

/** Tile records of groups of `count` rows, and their number, on the device. */
function putTiles(b: BenchDevice, groups: number, count: number, variant: GroupedVariant) {
  const each = rowsOfTile(count, mostTileRows(variant))
  const records = Array.from({ length: groups }, (_, g) =>
    Array.from({ length: Math.ceil(count / each) }, (_, i) => [
      ...[g, g * count + i * each, Math.min(each, count - i * each), 0],
    ]),
  ).flat(2)
  const maxTiles = records.length / 4
  return { tiles: b.put(Int32Array.from(records)), tileCount: b.put(Int32Array.of(maxTiles)), maxTiles, variant }
}

/** Groups, rows of each, N, K, gated. */
type GroupedShape = readonly [number, number, number, number, boolean]
/** With row tiles of a strip, where not the usual number. */
type GroupedWay = readonly [GroupedVariant, number?]

const MANY_ROWS: readonly GroupedShape[] = [
  [8, 1024, 4096, 7168, false],
  [8, 512, 4096, 7168, false],
  [8, 4096, 4096, 7168, false],
  [8, 1024, 7168, 2048, false],
  [128, 1024, 1536, 2048, true],
  [128, 1024, 2048, 768, false],
  [128, 128, 1536, 2048, false],
]

/** What low-latency dispatch leaves each expert. */
const FEW_ROWS: readonly GroupedShape[] = [
  [128, 8, 1536, 2048, false],
  [128, 8, 1536, 2048, true],
  [128, 8, 2048, 768, false],
  [128, 16, 1536, 2048, false],
  [128, 32, 1536, 2048, false],
  [8, 16, 4096, 7168, false],
]

const waysOfMany = ([, perGroup]: GroupedShape): GroupedWay[] => [
  ['sm90', 1],
  ['sm90', 2],
  ['sm90', 4],
  ...(perGroup === 512 ? ([['mma']] as const) : []),
]
const waysOfFew = (): GroupedWay[] => [['sm90']]

function* grouped(
  b: BenchDevice,
  shapes: readonly GroupedShape[],
  waysOf: (shape: GroupedShape) => readonly GroupedWay[],
): Iterable<KernelFigure> {
  for (const given of shapes) {
    const [groups, perGroup, n, k, gated] = given
    const rows = groups * perGroup
    const weight = b.matrix(n, k, groups)
    const x = b.kernels.addressOf(b.random(rows * k))
    const outWidth = gated ? n / 2 : n
    const sizes = { bytes: 2 * (groups * n * k + rows * k + rows * outWidth), flop: 2 * rows * n * k }
    const ways = waysOf(given).map(([variant, strip]) => {
      const tiles = putTiles(b, groups, perGroup, variant)
      const out = b.kernels.addressOf(b.lend(rows * outWidth * 2))
      const run = bindGroupedGemm(b.kernels, {
        ...{ weight, gated, ...tiles },
        ...(strip ? { strip } : {}),
        x: { address: x, stride: k, rows },
        out: { address: out, stride: outWidth },
      })
      const name = `grouped ${variant}${strip ? `, strips of ${strip}` : ''}${gated ? ', gated' : ''}`
      return { name, run: () => run(), result: { x, xStride: k, weight, out, outStride: outWidth, gated, ...tiles } }
    })
    const times = b.timeInTurns(ways.map(way => way.run))
    for (const [i, { name, result }] of ways.entries())
      yield figure(name, `${groups} × ${perGroup} rows, N ${n}, K ${k}`, times[i]!, sizes, check(b, result))
    b.release()
  }
}

/** Linear layers of Qwen3-30B-A3B: qkv, o, router, head. */
const DENSE = [
  [5120, 2048],
  [2048, 4096],
  [128, 2048],
  [151936, 2048],
] as const

function* dense(b: BenchDevice): Iterable<KernelFigure> {
  for (const [n, k] of DENSE)
    for (const rows of [1, 2, 4, 8, 16, 32, 64]) {
      const copies = Math.min(64, Math.max(1, Math.ceil(BEYOND_CACHE / (n * k * 2))))
      const x = b.kernels.addressOf(b.random(rows * k))
      const out = b.kernels.addressOf(b.lend(rows * n * 2))
      const weights = Array.from({ length: copies }, () => b.matrix(n, k, 1))
      const tiles = b.put(Int32Array.of(0, 0, rows, 0))
      const result = { x, xStride: k, weight: weights.at(-1)!, out, outStride: n, gated: false, tiles }
      const tileCount = b.put(Int32Array.of(1))
      const sizes = { bytes: 2 * (n * k + rows * k + rows * n), flop: 2 * rows * n * k }
      const shape = `${rows} rows, N ${n}, K ${k}`
      if (rows <= 8 || n * k <= 1 << 20) {
        const gemv = weights.map(weight =>
          bindGemv(b.kernels, {
            weight,
            x: { address: x, stride: k },
            out: { address: out, stride: n, dtype: 'bf16' },
          }),
        )
        const queues = gemv.map(run => () => run(rows))
        yield figure('gemv', shape, b.timeInGraph(queues), sizes, check(b, { ...result, tileCount }))
      }
      const blas = weights.map(weight =>
        b.kernels.blas.bind({
          ...{ n, k },
          x: { address: x, dtype: 'bf16', stride: k },
          weight: { address: b.kernels.addressOf(weight.span), dtype: 'bf16', stride: k },
          out: { address: out, dtype: 'bf16', stride: n },
        }),
      )
      const queues = blas.map(run => () => run(rows))
      yield figure('cuBLASLt', shape, b.timeInGraph(queues), sizes, check(b, { ...result, tileCount }))
      b.release()
    }
}

/** The routed experts of Qwen3-30B-A3B, ids drawn uniformly without repetition. */
const [HIDDEN, INTER, EXPERTS, TOP_K] = [2048, 768, 128, 8]

function* experts(b: BenchDevice): Iterable<KernelFigure> {
  for (const rows of [1, 2, 4, 8, 32, 128, 256, 1024, 4096, 16384]) {
    const random = new CounterRandom(5, STREAM.benchmark)
    const ids = new Int32Array(rows * TOP_K)
    for (let r = 0; r < rows; r++) {
      const taken = new Set<number>()
      while (taken.size < TOP_K) taken.add(random.below(EXPERTS))
      ids.set([...taken], r * TOP_K)
    }
    const touched = new Set(ids).size
    const int = (data: Int32Array | Float32Array) => {
      const span = b.lend(data.byteLength)
      b.context.upload(b.kernels.addressOf(span), data)
      return { span, offset: 0, stride: TOP_K }
    }
    const weights = Float32Array.from(ids, () => random.unit() / TOP_K)
    // Layers take other weights: enough of them that the cache helps none.
    const layers = rows <= 32 ? 4 : 1
    const rowsOf = (span: ReturnType<BenchDevice['lend']>, stride: number) =>
      ({ span, offset: 0, stride, dtype: 'bf16' }) as const
    const x = rowsOf(b.random(rows * HIDDEN), HIDDEN)
    const scratch = rowsOf(b.lend(rows * TOP_K * (3 * INTER + HIDDEN) * 2), TOP_K * (3 * INTER + HIDDEN))
    const idRows = int(ids)
    const weightRows = int(weights)
    const made = Array.from({ length: layers }, () => ({
      gateUp: b.matrix(2 * INTER, HIDDEN, EXPERTS),
      down: b.matrix(HIDDEN, INTER, EXPERTS),
    }))
    const bind = (gemvSlots: number, variant: GroupedVariant, out: ReturnType<BenchDevice['lend']>) =>
      made.map(layer =>
        fastExperts(
          b.kernels,
          {
            ...{ ...layer, x, scratch, ids: idRows, weights: weightRows, topK: TOP_K },
            out: rowsOf(out, HIDDEN),
            activation: { kind: 'silu' },
          },
          { gemvSlots, variant },
        ),
      )
    const slots = rows * TOP_K
    const sizes = {
      bytes: 2 * (touched * 3 * INTER * HIDDEN + 2 * rows * HIDDEN),
      flop: 2 * slots * 3 * INTER * HIDDEN,
    }
    const read = (out: ReturnType<BenchDevice['lend']>): Float32Array => {
      b.kernels.stream.synchronize()
      const bits = new Uint16Array(Math.min(rows, 256) * HIDDEN)
      b.context.download(bits, b.kernels.addressOf(out))
      return new Float32Array(Uint32Array.from(bits, w => w << 16).buffer)
    }
    const ways = [...(slots <= 64 ? [['gemv', slots, 'sm90'] as const] : []), ['sorted', 0, 'sm90'] as const]
    let reference: Float32Array | null = null
    for (const [name, gemvSlots, variant] of [['sorted mma', 0, 'mma'] as const, ...ways]) {
      const out = b.lend(rows * HIDDEN * 2)
      const bound = bind(gemvSlots, variant, out)
      if (!bound[0]) continue
      const queues = bound.map(run => () => run!(rows))
      if (name === 'sorted mma') {
        queues.at(-1)!()
        reference = read(out)
        continue
      }
      const time = b.timeInGraph(queues)
      const got = read(out)
      yield figure(`experts ${name}`, `${rows} rows, ${touched} experts`, time, sizes, unlike(got, reference!))
    }
    b.release()
  }
}

/** Largest |a - b| over what two ways of rounding may make of it: 2^-6 of the results' root mean square, and 2^-7 of the result. */
function unlike(a: Float32Array, b: Float32Array): number {
  const scale = Math.sqrt(b.reduce((sum, v) => sum + v * v, 0) / b.length)
  const worst = a.reduce((most, v, i) => {
    const ratio = Math.abs(v - b[i]!) / (scale * 2 ** -6 + Math.abs(b[i]!) * 2 ** -7)
    return ratio >= most || Number.isNaN(ratio) ? ratio : most
  }, 0)
  return scale > 0 ? worst : Number.NaN
}

export const gemmBenches: readonly KernelBench[] = [
  { name: 'grouped', run: b => grouped(b, MANY_ROWS, waysOfMany) },
  { name: 'masked', run: b => grouped(b, FEW_ROWS, waysOfFew) },
  { name: 'dense', run: dense },
  { name: 'experts', run: experts },
]
