// How long do decoding streams wait while long prompts arrive? Eight streams decode on the demo model; every second a
// prompt of 1,500 tokens comes in. Prints the gaps between tokens and the bound the scheduler keeps: a step with one
// whole chunk of prompt tokens. Usage: node bench/decode-gap.mjs [--seconds 20] [--svg FILE] [--json]
// Needs `npm run build`.
import { writeFileSync } from 'node:fs'
import { cpus } from 'node:os'
import { fileURLToPath } from 'node:url'
import { lineChart, standaloneSvg } from '../dist/cli/draw/index.js'
import { engineFlags } from '../dist/config/flags.js'
import { GREEDY, startEngine } from '../dist/engine/index.js'

const option = (name, fallback) => {
  const at = process.argv.indexOf(name)
  return at < 0 ? fallback : process.argv[at + 1]
}
const seconds = Number(option('--seconds', '20'))
const STREAMS = 8
const PROMPT = 1500
const chunk = 512
const modelPath = fileURLToPath(new URL('../models/demo', import.meta.url))
const flags = { modelPath, tpSize: 2, attnDpSize: 2, epSize: 2, chunkedPrefillSize: chunk, randomSeed: 1 }
const engine = await startEngine(engineFlags(flags))

const ids = (length, seed) => Array.from({ length }, (_, i) => 3 + ((i * 7919 + seed * 104729) % 8000))
const sampling = maxTokens => ({ ...GREEDY, maxTokens, ignoreEos: true })
const run = async (inputIds, maxTokens, onToken = () => {}) => {
  for await (const event of engine.generate({ inputIds, sampling: sampling(maxTokens) })) {
    if (event.tokenIds.length > 0) onToken(performance.now())
  }
}

/** Gaps between tokens of all streams, with when they ended. */
async function measure(withPrompts) {
  const stop = performance.now() + seconds * 1000
  const start = performance.now()
  const gaps = []
  const stream = async seed => {
    for (let turn = 0; performance.now() < stop; turn++) {
      let last = 0
      await run(ids(8, seed + 100 * turn), 400, now => {
        if (last > 0) gaps.push({ at: (now - start) / 1000, ms: now - last })
        last = now
      })
    }
  }
  const prompts = async () => {
    for (let i = 0; withPrompts && performance.now() < stop; i++) {
      void run(ids(PROMPT, 7 + i), 1)
      await new Promise(resolve => setTimeout(resolve, 1000))
    }
  }
  await Promise.all([...Array.from({ length: STREAMS }, (_, i) => stream(i + 1)), prompts()])
  return gaps
}

/** Time of a step with one whole chunk and the decoding rows, at the longest context: the bound. */
async function boundMs() {
  const times = []
  for (let i = 0; i < 5; i++) {
    const chunks = Math.ceil(PROMPT / chunk)
    const begin = performance.now()
    await run(ids(PROMPT, 1000 + i), 1)
    times.push((performance.now() - begin) / chunks)
  }
  return Math.max(...times)
}

const bound = await boundMs()
const alone = await measure(false)
const mixed = await measure(true)
const quantile = (gaps, q) => {
  const sorted = gaps.map(g => g.ms).sort((a, b) => a - b)
  return sorted[Math.min(sorted.length - 1, Math.floor(q * sorted.length))]
}
const summary = gaps => ({
  tokens: gaps.length,
  p50: quantile(gaps, 0.5),
  p99: quantile(gaps, 0.99),
  longest: quantile(gaps, 1),
})
const decodeStep = quantile(alone, 0.99)
const report = {
  machine: `${cpus()[0].model}, ${cpus().length} cores`,
  streams: STREAMS,
  promptTokens: PROMPT,
  chunk,
  // The chunk of one DP rank, the other rank's (prompts are spread, both may prefill at once), and the decoding rows.
  boundMs: 2 * bound + decodeStep,
  alone: summary(alone),
  withPrompts: summary(mixed),
}
if (process.argv.includes('--json')) console.log(JSON.stringify(report, null, 2))
else {
  const row = (name, s) =>
    console.log(
      `${name.padEnd(34)} p50 ${s.p50.toFixed(1)} ms, p99 ${s.p99.toFixed(1)} ms, longest ${s.longest.toFixed(1)} ms (${s.tokens} tokens)`,
    )
  console.log(report.machine)
  row('8 streams alone', report.alone)
  row('with 1,500-token prompts a second', report.withPrompts)
  console.log(
    `bound: ${report.boundMs.toFixed(1)} ms (a chunk of ${chunk} prompt tokens on each rank at once, and the decoding rows)`,
  )
}
const svg = option('--svg', null)
if (svg) {
  const slots = Array.from({ length: seconds * 4 }, (_, i) => i / 4)
  const worst = gaps => {
    const longest = new Map()
    for (const { at, ms } of gaps)
      longest.set(Math.floor(at * 4) / 4, Math.max(ms, longest.get(Math.floor(at * 4) / 4) ?? 0))
    return slots.map(slot => longest.get(slot) ?? Number.NaN)
  }
  const chart = {
    title: 'Longest gap between two tokens of a stream, by quarter second',
    xLabel: 'seconds',
    yLabel: 'milliseconds',
    x: slots,
    yFrom: 0,
    series: [
      { name: '8 streams alone', color: 0, values: worst(alone) },
      { name: 'a 1,500-token prompt every second', color: 1, values: worst(mixed) },
      { name: 'bound: one chunk on each rank', color: 2, dashed: true, values: slots.map(() => report.boundMs) },
    ],
  }
  writeFileSync(svg, standaloneSvg(lineChart(chart, 860)))
}
await engine.close()
