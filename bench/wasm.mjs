// WebAssembly (each instruction set this Node has) against native kernels on the demo model: engines of one process take turns, so that
// all meet the same minutes of a shared machine. Prompts differ from round to round, so no prefix is found in a cache.
//   npm run build && node bench/wasm.mjs [--streams 1] [--rounds 15] [--dtype bfloat16] [--json]
// SWITCHYARD_CPU_ISA=avx2 compares with another native instruction set. Figures are medians with the best beside them, and what the core
// could do at best in the same minutes: multiply-adds from registers.
import { parseArgs } from 'node:util'
import { engineFlags } from '../dist/config/flags.js'
import { createCpuDevice } from '../dist/device/cpu/index.js'
import { wasmIsas } from '../dist/device/cpu/wasm-isa.js'
import { GREEDY, startEngine } from '../dist/engine/index.js'

const { values: options } = parseArgs({
  options: {
    streams: { type: 'string', default: '1' },
    rounds: { type: 'string', default: '15' },
    dtype: { type: 'string', default: 'bfloat16' },
    json: { type: 'boolean', default: false },
  },
})
const streams = Number(options.streams)
const rounds = Number(options.rounds)
const PROMPT = 256
const OUTPUT = 96
const modelPath = new URL('../models/demo', import.meta.url).pathname

const ids = (length, salt) => Array.from({ length }, (_, i) => 3 + ((i * 7919 + length + salt * 613 * (i + 1)) % 8000))

/** Milliseconds to the first token, and tokens a second after it. */
async function stream(engine, inputIds, maxTokens) {
  const started = performance.now()
  let first = 0
  let tokens = 0
  const sampling = { ...GREEDY, maxTokens, ignoreEos: true }
  for await (const event of engine.generate({ inputIds, sampling })) {
    first ||= performance.now()
    tokens += event.tokenIds.length
  }
  return { firstMs: first - started, rate: (tokens - 1) / ((performance.now() - first) / 1000) }
}

const sides = []
const nativeIsa = process.env.SWITCHYARD_CPU_ISA
for (const isa of [nativeIsa, ...wasmIsas()]) {
  const kernels = sides.length === 0 ? 'native' : 'wasm'
  // Ranks take it over with their environment.
  if (isa) process.env.SWITCHYARD_CPU_ISA = isa
  const flags = { modelPath, kernels, dtype: options.dtype, randomSeed: 1, maxTotalTokens: 16384 }
  const engine = await startEngine(engineFlags(flags))
  const device = createCpuDevice({ kernels, isa })
  sides.push({ engine, device, decode: [], prompt: [], peak: [] })
}
for (let round = 0; round <= rounds; round++)
  for (const { engine, device, decode, prompt, peak } of sides) {
    const all = await Promise.all(
      Array.from({ length: streams }, (_, s) => stream(engine, ids(64, round * streams + s + 1), OUTPUT)),
    )
    const one = await stream(engine, ids(PROMPT, 1e5 + round), 2)
    if (round === 0) continue // warm-up
    decode.push(all.reduce((sum, s) => sum + s.rate, 0))
    prompt.push(PROMPT / (one.firstMs / 1000))
    peak.push(device.multiplyAddRate() / 1e9)
  }

const median = list => [...list].sort((a, b) => a - b)[list.length >> 1]
const figures = list => ({ median: Math.round(median(list)), best: Math.round(Math.max(...list)) })
const results = sides.map(({ engine, decode, prompt, peak }) => ({
  kernels: engine.info().kernels,
  decode: figures(decode),
  prompt: figures(prompt),
  gigaflops: figures(peak),
}))
const [native, ...others] = results
const share = (of, what) => Math.round((100 * of[what].median) / native[what].median)
const shares = others.map(of => ({
  kernels: of.kernels,
  decode: share(of, 'decode'),
  prompt: share(of, 'prompt'),
  peak: share(of, 'gigaflops'),
}))
if (options.json)
  console.log(JSON.stringify({ node: process.version, streams, rounds, dtype: options.dtype, results, shares }))
else {
  console.log(`Node ${process.version}, ${streams} streams, ${options.dtype}, medians of ${rounds} rounds (best)`)
  for (const { kernels, decode, prompt, gigaflops } of results)
    console.log(
      `${kernels.padEnd(24)} decode ${decode.median} (${decode.best}) tok/s, prompt ${prompt.median} (${prompt.best}) tok/s, multiply-add ${gigaflops.median} (${gigaflops.best}) GFLOP/s`,
    )
  for (const { kernels, decode, prompt, peak } of shares)
    console.log(
      `${kernels}: ${decode}% of native decode, ${prompt}% of native prompt, ${peak}% of native multiply-adds`,
    )
}
for (const { engine } of sides) await engine.close(0)
