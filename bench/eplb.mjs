// Times the balancing algorithms on one core, warm: the deployment sizes that people ask about, and 1,000 recorded steps.
// Usage: npm run build && node bench/eplb.mjs [--json] [--runs 5]. Loads are synthetic and seeded (src/eplb/synthetic.ts).
import { performance } from 'node:perf_hooks'
import { getAlgorithm, makeCluster, meanBalancedness, quality, syntheticCounts } from '../dist/eplb/index.js'

// One core: say `taskset -c 0 node bench/eplb.mjs` to be sure of it. A run that shared its core is told by its median.
const json = process.argv.includes('--json')
const runs = Number(process.argv[process.argv.indexOf('--runs') + 1]) || 5
const algorithms = [
  'deepseek',
  'deepseek_hierarchical',
  'deepseek_vec',
  'deepseek_vec_hierarchical',
  'elasticity_aware',
]
const skewed = { seed: 1, drift: 'walk', pairs: 65536, skew: 0.8 }
const cases = [
  {
    name: '58 layers, 256 → 288 on 72 GPUs, 8 nodes, 8 groups, 8 steps',
    counts: syntheticCounts({ ...skewed, steps: 8, layers: 58, experts: 256 }),
    cluster: makeCluster({ gpus: 72, nodes: 8, physical: 288 }),
    groups: 8,
  },
  {
    name: '61 layers, 384 → 480 on 96 GPUs, 12 nodes, 12 groups, 8 steps',
    counts: syntheticCounts({ ...skewed, steps: 8, layers: 61, experts: 384 }),
    cluster: makeCluster({ gpus: 96, nodes: 12, physical: 480 }),
    groups: 12,
  },
  {
    name: '58 layers, 256 → 288 on 72 GPUs, 8 nodes, 8 groups, 1,000 steps',
    counts: syntheticCounts({ ...skewed, steps: 1000, layers: 58, experts: 256 }),
    cluster: makeCluster({ gpus: 72, nodes: 8, physical: 288 }),
    groups: 8,
  },
]

/** Median and least of `runs` timings after one that warms up. */
function timed(work) {
  work()
  const times = []
  let result
  for (let i = 0; i < runs; i++) {
    const start = performance.now()
    result = work()
    times.push(performance.now() - start)
  }
  times.sort((a, b) => a - b)
  return { median: times[Math.floor(times.length / 2)], least: times[0], result }
}

const rows = []
for (const { name, counts, cluster, groups } of cases) {
  if (!json) console.log(`\n${name}`)
  const input = { counts, cluster, groups }
  const work = [
    ...algorithms.map(a => [a, () => getAlgorithm(a).plan(input)]),
    ['switchyard, no placement in effect', () => getAlgorithm('switchyard').plan(input)],
    ['switchyard, λ = 0', () => getAlgorithm('switchyard').plan({ ...input, lambda: 0 })],
  ]
  const current = getAlgorithm('deepseek').plan(input).placement
  work.push(['switchyard, from a current placement', () => getAlgorithm('switchyard').plan({ ...input, current })])
  for (const [algorithm, plan] of work) {
    const { median, least, result } = timed(plan)
    const balancedness = meanBalancedness(quality(result.placement, counts))
    rows.push({ case: name, algorithm, medianMilliseconds: median, leastMilliseconds: least, balancedness })
    if (!json)
      console.log(
        `  ${algorithm.padEnd(38)} ${median.toFixed(1).padStart(9)} ms (least ${least.toFixed(1)})   balancedness ${balancedness.toFixed(4)}`,
      )
  }
}
if (json) console.log(JSON.stringify({ node: process.version, runs, rows }, null, 2))
