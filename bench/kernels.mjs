// Times the CPU kernels of one core against what that core can do at best, measured in the same run: read bandwidth for
// one row (weights larger than the caches, taken in turn), multiply-add rate from registers for many rows.
//   npm run build && node bench/kernels.mjs [--json] [--kernels native|wasm] [--isa NAME] [--only linear,experts,attention,small] [--reps N]
// Every figure is a median with the best beside it; probes and kernels alternate, because shared machines drift.
import { cpus } from 'node:os'
import { parseArgs } from 'node:util'
import { createCpuDevice } from '../dist/device/cpu/index.js'
import { f32View, HostMemoryLender, i32View } from '../dist/device/memory.js'
import { CounterRandom, STREAM } from '../dist/runtime/random.js'

const { values: flags } = parseArgs({
  options: {
    json: { type: 'boolean', default: false },
    kernels: { type: 'string', default: 'native' },
    isa: { type: 'string' },
    only: { type: 'string', default: 'linear,experts,attention,small' },
    reps: { type: 'string', default: '5' },
    'plain-memory': { type: 'boolean', default: false },
  },
})
const device = createCpuDevice({ kernels: flags.kernels, ...(flags.isa ? { isa: flags.isa } : {}) })
const { ops, packer } = device
// --plain-memory: buffers where Node puts them, 16 bytes past a page, in 4 KiB pages.
const lender = flags['plain-memory'] ? new HostMemoryLender() : device.createLender()
const reps = Number(flags.reps)
const wanted = new Set(flags.only.split(','))

const lend = bytes => lender.lend(bytes, 'bench')
const random = new CounterRandom(1, STREAM.benchmark)
const rows = (count, width) => {
  const span = lend(count * width * 4)
  const f = f32View(span)
  for (let i = 0; i < f.length; i++) f[i] = random.unit() - 0.5
  return { span, offset: 0, stride: width }
}
const ints = values => {
  const span = lend(values.length * 4)
  i32View(span).set(values)
  return span
}
/** `count` matrices of small random numbers; the bytes matter, not the values, so one is made and copied. */
const matrices = (kind, n, k, count) => {
  const strideBytes = packer.packedBytes(kind, n, k)
  const span = lend(strideBytes * count)
  const m = { kind, n, k, count, strideBytes, span }
  const source = Float32Array.from({ length: n * k }, () => random.unit() - 0.5)
  const bytes = new Uint8Array(source.buffer)
  packer.packMatrix(m, 0, 0, n, { dtype: 'F32', bytes, offset: 0, strideN: k, strideK: 1 })
  const first = new Uint8Array(span.buffer, span.byteOffset, strideBytes)
  for (let i = 1; i < count; i++) new Uint8Array(span.buffer, span.byteOffset + i * strideBytes, strideBytes).set(first)
  return m
}
const single = (m, i) => ({
  ...m,
  count: 1,
  span: { buffer: m.span.buffer, byteOffset: m.span.byteOffset + i * m.strideBytes, byteLength: m.strideBytes },
})

const median = list => [...list].sort((a, b) => a - b)[list.length >> 1]
const big = lend(1 << 30)
new Uint8Array(big.buffer, big.byteOffset, big.byteLength).fill(1)

/** Seconds of one call of `f`, median and best over the repetitions, with the probe taken between them. */
function time(f, calls, probe) {
  const times = []
  const limits = []
  f()
  for (let r = 0; r < reps; r++) {
    limits.push(probe())
    const t = performance.now()
    for (let i = 0; i < calls; i++) f()
    times.push((performance.now() - t) / 1000 / calls)
  }
  return { median: median(times), best: Math.min(...times), limit: median(limits) }
}
const bandwidth = () => device.readBandwidth(big)
const peak = () => device.multiplyAddRate()

const results = []
function report(name, shape, t, bytes, flop, bound) {
  const entry = {
    name,
    shape,
    micros: t.median * 1e6,
    bestMicros: t.best * 1e6,
    gigabytesPerSecond: bytes / t.median / 1e9,
    gigaflops: flop / t.median / 1e9,
    bound,
    limit: t.limit / 1e9,
    share: (bound === 'bandwidth' ? bytes : flop) / t.median / t.limit,
    bestShare: (bound === 'bandwidth' ? bytes : flop) / t.best / t.limit,
  }
  results.push(entry)
  if (flags.json) return
  const us = `${entry.micros.toFixed(1)} / ${entry.bestMicros.toFixed(1)} µs`
  const share =
    bound === 'none'
      ? ''
      : `${(entry.share * 100).toFixed(0)}% (best ${(entry.bestShare * 100).toFixed(0)}%) of ${entry.limit.toFixed(1)} ${bound === 'bandwidth' ? 'GB/s' : 'GFLOP/s'}`
  console.log(
    `${name.padEnd(22)} ${shape.padEnd(34)} ${us.padStart(22)}  ${entry.gigabytesPerSecond.toFixed(1).padStart(6)} GB/s ${entry.gigaflops.toFixed(1).padStart(7)} GFLOP/s  ${share}`,
  )
}

if (!flags.json) {
  console.log(`${cpus()[0]?.model}, ${cpus().length} cores, Node ${process.version}, kernels: ${ops.name}`)
  console.log(
    `read ${(bandwidth() / 1e9).toFixed(1)} GB/s, multiply-add ${(peak() / 1e9).toFixed(1)} GFLOP/s, one thread`,
  )
}

if (wanted.has('linear'))
  for (const [n, k] of [
    [1536, 2048],
    [2048, 768],
  ])
    for (const kind of ['f32', 'bf16']) {
      const one = packer.packedBytes(kind, n, k)
      const count = Math.ceil((640 << 20) / one)
      const m = matrices(kind, n, k, count)
      for (const M of [1, 2, 4, 8, 64]) {
        const x = rows(M, k)
        const out = rows(M, n)
        const kernels = Array.from({ length: count }, (_, i) => ops.linear({ out, x, weight: single(m, i) }))
        let next = 0
        const calls = M === 1 ? count : Math.max(4, Math.ceil(64 / M))
        const t = time(() => kernels[next++ % count](M), calls, M <= 8 ? bandwidth : peak)
        report(
          `linear ${kind}`,
          `M ${M}, N ${n}, K ${k}`,
          t,
          one + M * (n + k) * 4,
          2 * M * n * k,
          M <= 8 ? 'bandwidth' : 'peak',
        )
      }
    }

function expertsCase(kind, hidden, inter, experts, topK, M, resident) {
  const gateUp = matrices(kind, 2 * inter, hidden, experts)
  const down = matrices(kind, hidden, inter, experts)
  const x = rows(M, hidden)
  const out = rows(M, hidden)
  const idSpan = ints(Array.from({ length: M * topK }, (_, i) => (i * 7) % experts))
  const ids = { span: idSpan, offset: 0, stride: topK }
  const weights = rows(M, topK)
  const scratch = rows(M, topK * (3 * inter + hidden))
  const kernel = ops.experts({ out, x, ids, weights, topK, gateUp, down, activation: { kind: 'silu' }, scratch })
  const view = i32View(idSpan)
  let turn = 0
  const f = () => {
    // Other experts every time, so that a decode step streams its weights; none is chosen twice by one token.
    if (!resident) {
      turn += topK
      for (let r = 0; r < M; r++) for (let s = 0; s < topK; s++) view[r * topK + s] = (turn + s + r * 5) % experts
    }
    kernel(M)
  }
  const active = new Set(Array.from({ length: M * topK }, (_, i) => (i + Math.floor(i / topK) * (5 - topK)) % experts))
  const bytes = (resident ? Math.min(experts, M * topK) : active.size) * (gateUp.strideBytes + down.strideBytes)
  const flop = M * topK * 6 * hidden * inter
  const bound = resident ? 'none' : M <= 8 ? 'bandwidth' : 'peak'
  const calls = Math.max(3, Math.ceil(2e9 / (flop + bytes * 10)))
  const t = time(f, Math.min(calls, 2000), bound === 'peak' ? peak : bandwidth)
  report(`experts ${kind}`, `M ${M}, ${hidden}/${inter}, top ${topK} of ${experts}`, t, bytes, flop, bound)
}
if (wanted.has('experts'))
  for (const kind of ['f32', 'bf16'])
    for (const M of [1, 8, 64]) expertsCase(kind, 2048, 768, kind === 'f32' ? 40 : 80, 8, M, false)

function attentionCase(heads, kvHeads, qkWidth, vWidth, shared, rowsCount, context) {
  const width = shared ? qkWidth : kvHeads * (qkWidth + vWidth)
  const pageSize = 64
  const decode = rowsCount.decode ?? 0
  const sequences = decode || 1
  const pages = Math.ceil(context / pageSize)
  const kv = rows(sequences * pages * pageSize, width)
  const table = ints(Array.from({ length: sequences * pages }, (_, i) => (i * 5) % (sequences * pages)))
  const M = decode || rowsCount.prompt
  const q = rows(M, heads * qkWidth)
  const out = rows(M, heads * vWidth)
  const batch = {
    rowSequence: { span: ints(Array.from({ length: M }, (_, i) => (decode ? i : 0))), offset: 0, stride: 1 },
    positions: {
      span: ints(Array.from({ length: M }, (_, i) => (decode ? context - 1 : context - M + i))),
      offset: 0,
      stride: 1,
    },
    pageTable: { span: table, offset: 0, stride: pages },
    pageSize,
  }
  const kernel = ops.attention({
    out,
    q,
    kv,
    batch,
    heads,
    kvHeads,
    qkWidth,
    vWidth,
    keyOffset: 0,
    valueOffset: shared ? 0 : kvHeads * qkWidth,
    scale: 0.1,
  })
  const seen = decode ? M * context : M * (context - M) + (M * (M + 1)) / 2
  const flop = 2 * seen * heads * (qkWidth + vWidth)
  const bytes = (decode ? M * context : context) * width * 4
  const bound = decode && !shared ? 'bandwidth' : 'peak'
  const t = time(() => kernel(M), Math.max(2, Math.ceil(1e8 / flop)), bound === 'peak' ? peak : bandwidth)
  const what = decode ? `${M} tokens` : `prompt ${M}`
  report(
    shared ? 'attention MLA' : 'attention GQA',
    `${what}, ${heads}/${kvHeads} × ${qkWidth}/${vWidth}, ctx ${context}`,
    t,
    bytes,
    flop,
    bound,
  )
}
if (wanted.has('attention')) {
  attentionCase(32, 4, 128, 128, false, { decode: 1 }, 4096)
  attentionCase(32, 4, 128, 128, false, { decode: 32 }, 4096)
  attentionCase(16, 16, 64, 64, false, { decode: 32 }, 2048)
  attentionCase(32, 4, 128, 128, false, { prompt: 256 }, 512)
  attentionCase(16, 16, 64, 64, false, { prompt: 256 }, 512)
  attentionCase(16, 1, 576, 512, true, { decode: 8 }, 2048)
  attentionCase(16, 1, 576, 512, true, { prompt: 64 }, 512)
}

if (wanted.has('small')) {
  const small = (name, shape, kernel, M, bytes, flop) =>
    report(
      name,
      shape,
      time(() => kernel(M), 2000, bandwidth),
      bytes,
      flop,
      'none',
    )
  const x = rows(8, 1024)
  const out = rows(8, 1024)
  for (const kind of ['f32', 'bf16']) {
    const m = matrices(kind, 256, 256, 1)
    for (const M of [1, 4])
      small(
        `linear ${kind}`,
        `M ${M}, N 256, K 256, in cache`,
        ops.linear({ out, x, weight: m }),
        M,
        m.strideBytes,
        2 * M * 65536,
      )
    expertsCase(kind, 256, 128, 8, 2, 1, true)
  }
  const weight = { span: x.span, length: 256 }
  small('rmsNorm', 'M 1, 256', ops.rmsNorm({ out, x, weight, width: 256, groups: 1, eps: 1e-6 }), 1, 1024, 512)
  small('copy', 'M 1, 1 (call cost)', ops.copy({ out, x, width: 1 }), 1, 4, 0)
  const spec = {
    experts: 128,
    topK: 8,
    scoring: 'softmax',
    groups: 1,
    topGroups: 1,
    groupScore: 'max',
    normalize: true,
    scale: 1,
  }
  small('router', 'M 1, top 8 of 128', ops.router({ ids: rows(8, 8), weights: rows(8, 8), logits: x, spec }), 1, 512, 0)
  attentionCase(8, 2, 32, 32, false, { decode: 1 }, 128)
  for (const vocab of [4096, 151936]) {
    const logits = rows(1, vocab)
    const f = f32View(logits.span)
    for (let i = 0; i < vocab; i++) f[i] *= 20
    const params = rows(3, 8)
    const p = f32View(params.span)
    p.set([0, 1, 0, 0, 1, 0, 5, 0, 0.8, 1, 0, 0, 1, 0, 5, 0, 0.8, 0.9, 0, 50, 1, 0, 5, 0])
    ;['greedy', 'plain', 'top-k 50, top-p'].forEach((name, i) => {
      const kernel = ops.sample({ out: rows(1, 1), logits, params: { ...params, offset: i * 8 }, vocab })
      report(
        `sample ${name}`,
        `vocab ${vocab}`,
        time(() => kernel(1), 20, bandwidth),
        vocab * 4,
        0,
        'none',
      )
    })
  }
}

if (flags.json)
  console.log(
    JSON.stringify(
      { cpu: cpus()[0]?.model, cores: cpus().length, node: process.version, kernels: ops.name, results },
      null,
      1,
    ),
  )
