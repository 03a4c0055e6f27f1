// Fused layer boundaries against separate operations on the demo model: two engines of one process take turns, so that both
// meet the same minutes of a shared machine. Prompts differ from round to round, so no prefix is found in a cache.
//   npm run build && node bench/boundary.mjs [--layout dp2|tp2|dp2tp2] [--batches 1,8,32] [--rounds 9] [--dtype bfloat16] [--json]
// Figures are medians over rounds with the best beside them, and how often the fused engine was the faster of a round's two.
// --one-thread: all ranks in one thread, by processor time: what the work costs without the waits, also on a busy machine.
import { cpus, loadavg } from 'node:os'
import { parseArgs } from 'node:util'
import { measure } from '../dist/cli/bench/run.js'
import { engineFlags } from '../dist/config/flags.js'
import { toRankRequest } from '../dist/engine/check-request.js'
import { GREEDY, startEngine } from '../dist/engine/index.js'
import { OneThreadEngine } from '../dist/engine/one-thread.js'

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
    'one-thread': { type: 'boolean', default: false },
    json: { type: 'boolean', default: false },
  },
})
const rounds = Number(options.rounds)
const batches = options.batches.split(',').map(Number)
const modelPath = new URL('../models/demo', import.meta.url).pathname

/** Speeds of a batch as a client sees them. */
async function threads(flags, unfused) {
  const engine = await startEngine(engineFlags(flags), { plan: { unfused } })
  const load = (batch, seed) => ({ batch, promptTokens: 128, outputTokens: 96, seed })
  return {
    speed: (batch, seed) => measure(engine, load(batch, seed), () => performance.now()),
    close: () => engine.close(0),
  }
}

/** Tokens a second of processor time: prompts alone, then decoding alone. */
async function oneThread(flags, unfused) {
  const given = engineFlags({ ...flags, contextLength: 256, disableRadixCache: true })
  const engine = await OneThreadEngine.load(given, { unfused })
  const { attnDp } = engine.plan.topology.sizes
  const rate = (batch, prompt, tokens, seed) => {
    const requests = Array.from({ length: batch }, (_, i) => {
      const inputIds = Array.from({ length: prompt }, (_, t) => 3 + ((t * 7919 + i * 613 + seed * 31) % 8000))
      return toRankRequest(`${i}`, { inputIds, sampling: { ...GREEDY, maxTokens: tokens, ignoreEos: true } }, 0n, [])
    })
    const routes = requests.map((_, i) => i % attnDp)
    const before = process.cpuUsage()
    engine.run(requests, routes, seed)
    const { user } = process.cpuUsage(before)
    return (1e6 * batch * Math.max(prompt - 1, tokens)) / user
  }
  return {
    speed: async (batch, seed) => ({
      promptTokensPerSecond: rate(batch, 128, 1, seed),
      decodeTokensPerSecond: rate(batch, 1, 96, seed),
    }),
    close: async () => {},
  }
}

const sides = []
for (const unfused of [true, false]) {
  const flags = { modelPath, dtype: options.dtype, randomSeed: 1, maxTotalTokens: 16384, ...LAYOUTS[options.layout] }
  const engine = await (options['one-thread'] ? oneThread : threads)(flags, unfused)
  sides.push({ engine, speeds: batches.map(() => []) })
}
for (let round = 0; round <= rounds; round++) {
  for (const [i, batch] of batches.entries()) {
    // Who goes first changes, so that neither always meets a colder machine.
    for (const side of round % 2 ? sides : [...sides].reverse()) {
      const speed = await side.engine.speed(batch, 1 + round * 100 + i)
      if (round > 0) side.speeds[i].push(speed) // round 0 warms up
    }
  }
}
for (const { engine } of sides) await engine.close()

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
  const how = options['one-thread'] ? 'one thread, tokens a second of processor time' : 'a thread a rank'
  console.log(
    `${machine}; ${options.layout}, ${options.dtype}, ${how}; medians of ${rounds} rounds (best); ratio: median of the rounds' ratios`,
  )
  for (const { batch, ...row } of results)
    for (const [what, { separate, fused, ratio, won }] of Object.entries(row))
      console.log(
        `${String(batch).padStart(3)} streams  ${what.padEnd(7)} separate ${separate.median} (${separate.best}), fused ${fused.median} (${fused.best}) tok/s, ratio ${ratio}, faster in ${won} of ${rounds}`,
      )
}
