// Fused layer boundaries against separate operations on the demo model: two engines of one process take turns, so that both
// meet the same minutes of a shared machine. Prompts differ from round to round, so no prefix is found in a cache.
//   npm run build && node bench/boundary.mjs [--layout dp2|tp2|dp2tp2] [--batches 1,8,32] [--rounds 9] [--dtype bfloat16] [--json]
// Figures are medians over rounds with the best beside them, and how often the fused engine was the faster of a round's two.
import { cpus, loadavg } from 'node:os'
import { parseArgs } from 'node:util'
import { measure } from '../dist/cli/bench/run.js'
import { engineFlags } from '../dist/config/flags.js'
import { startEngine } from '../dist/engine/index.js'

const LAYOUTS = {
  dp2: { tpSize: 2, attnDpSize: 2, epSize: 2 },
  tp2: { tpSize: 2 },
  dp2tp2: { tpSize: 4, attnDpSize: 2, epSize: 4 },
}
const { values: options } = parseArgs({
  options: {
    layout: { type: 'string', default: 'dp2' },
    batches: { type: 'string', default: '1,8,32' },
    rounds: { type: 'string', default: '9' },
    dtype: { type: 'string', default: 'bfloat16' },
    json: { type: 'boolean', default: false },
  },
})
const rounds = Number(options.rounds)
const batches = options.batches.split(',').map(Number)
const modelPath = new URL('../models/demo', import.meta.url).pathname

const sides = []
for (const unfused of [true, false]) {
  const flags = { modelPath, dtype: options.dtype, randomSeed: 1, maxTotalTokens: 16384, ...LAYOUTS[options.layout] }
  const engine = await startEngine(engineFlags(flags), { plan: { unfused } })
  sides.push({ name: unfused ? 'separate' : 'fused', engine, speeds: batches.map(() => []) })
}
const load = (batch, round) => ({ batch, promptTokens: 128, outputTokens: 96, seed: 1 + round })
for (let round = 0; round <= rounds; round++) {
  for (const [i, batch] of batches.entries()) {
    // Who goes first changes, so that neither always meets a colder machine.
    for (const side of round % 2 ? sides : [...sides].reverse()) {
      const speed = await measure(side.engine, load(batch, round * 100 + i), () => performance.now())
      if (round > 0) side.speeds[i].push(speed) // round 0 warms up
    }
  }
}
for (const { engine } of sides) await engine.close(0)

const median = list => [...list].sort((a, b) => a - b)[list.length >> 1]
const KEYS = { decode: 'decodeTokensPerSecond', prompt: 'promptTokensPerSecond' }
const results = batches.map((batch, i) => {
  const row = { batch }
  for (const [what, key] of Object.entries(KEYS)) {
    const [separate, fused] = sides.map(side => side.speeds[i].map(s => s[key]))
    const figures = list => ({ median: Math.round(median(list)), best: Math.round(Math.max(...list)) })
    const ratio = median(fused.map((f, r) => f / separate[r]))
    const won = fused.filter((f, r) => f > separate[r]).length
    row[what] = { separate: figures(separate), fused: figures(fused), ratio: Number(ratio.toFixed(3)), won }
  }
  return row
})
const machine = `${cpus()[0].model.trim()}, ${cpus().length} cores, load ${loadavg()[0].toFixed(1)}, Node ${process.version}`
if (options.json) console.log(JSON.stringify({ machine, ...options, rounds, results }))
else {
  console.log(
    `${machine}; ${options.layout}, ${options.dtype}, medians of ${rounds} rounds (best); ratio: median of the rounds' ratios`,
  )
  for (const { batch, ...row } of results)
    for (const [what, { separate, fused, ratio, won }] of Object.entries(row))
      console.log(
        `${String(batch).padStart(3)} streams  ${what.padEnd(7)} separate ${separate.median} (${separate.best}), fused ${fused.median} (${fused.best}) tok/s, ratio ${ratio}, faster in ${won} of ${rounds}`,
      )
}
