// Times the balancing algorithms on one core, warm: the deployment sizes that people ask about, and 1,000 recorded steps.
// Usage: npm run build && node bench/eplb.mjs [--json] [--runs 5]. Loads are synthetic and seeded (src/eplb/synthetic.ts).
import { performance } from 'node:perf_hooks'
import { getAlgorithm, makeCluster, meanBalancedness, quality, syntheticCounts } from '../dist/eplb/index.js'

// On a shared machine the time used of a core (`of a core`) says more than the clock.
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

const middle = values => [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)]

/** `runs` timings after two that warm up, in milliseconds: wall clock, and what the process used of its cores. */
function timed(work) {
  work()
  work()
  const wall = []
  const cpu = []
  let result
  for (let i = 0; i < runs; i++) {
    const used = process.cpuUsage()
    const start = performance.now()
    result = work()
    wall.push(performance.now() - start)
    const { user, system } = process.cpuUsage(used)
    cpu.push((user + system) / 1000)
  }
  return { median: middle(wall), least: Math.min(...wall), cpu: middle(cpu), result }
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
    const { median, least, cpu, result } = timed(plan)
    const balancedness = meanBalancedness(quality(result.placement, counts))
    rows.push({
      case: name,
      algorithm,
      medianMilliseconds: median,
      leastMilliseconds: least,
      cpuMilliseconds: cpu,
      balancedness,
    })
    if (!json)
      console.log(
        `  ${algorithm.padEnd(38)} ${median.toFixed(1).padStart(9)} ms (least ${least.toFixed(1)}, of a core ${cpu.toFixed(1)})   balancedness ${balancedness.toFixed(4)}`,
      )
  }
}
if (json) console.log(JSON.stringify({ node: process.version, runs, rows }, null, 2))
