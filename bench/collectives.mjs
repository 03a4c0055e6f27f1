// What a barrier and the moves of a layer cost between ranks as worker threads: barrier, all-gather and reduce-scatter
// of decode-sized and chunk-sized rows; and the layer boundary, with separate operations and fused: the sum with residual and
// norm, and the norm with its gather. Cases take turns. Usage: node bench/collectives.mjs [--hidden 256] [--ranks 2,4,8]
// [--json]; needs `npm run build`.
import { availableParallelism, cpus } from 'node:os'
import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads'
import { lendExchange, ShmCommunicator } from '../dist/comm/index.js'
import { createCpuDevice } from '../dist/device/cpu/index.js'
import { HostMemoryLender } from '../dist/device/memory.js'
import { ControlBlock } from '../dist/runtime/control.js'
import { drive, spinPolicy } from '../dist/runtime/wait.js'

const CASES = [
  { name: 'barrier', rows: 0 },
  ...['all_gather', 'reduce_scatter', 'scatter, norm', 'reduce_norm', 'norm, gather', 'norm in place'].flatMap(name =>
    [1, 16, 256].map(rows => ({ name, rows })),
  ),
]
const REPEATS = 15

if (isMainThread) await main()
else work()

/** The operations of a case on one rank: steps, and kernels between them. */
function caseOf(name, comm, ops, rows, hidden, tag) {
  const lender = new HostMemoryLender()
  const operand = n => ({ span: lender.lend(Math.max(1, n) * hidden * 4, 'bench'), offset: 0, stride: hidden })
  const { size, member } = comm
  const counts = Array(size).fill(rows)
  const [own, all, out, residual] = [operand(rows), operand(rows * size), operand(rows), operand(rows)]
  const weight = { span: lender.lend(hidden * 4, 'bench'), length: hidden }
  const norm = { residual, weight, width: hidden, eps: 1e-6 }
  const range = { all: rows * size, from: rows * member, count: rows }
  const scatter = () => comm.reduceScatter(tag, all, own, hidden, counts)
  const windows = comm.windows(hidden)
  const addNorm = ops.addRmsNorm({ ...norm, out, x: own })
  switch (name) {
    case 'barrier':
      return () => comm.barrier(tag)
    case 'all_gather':
      return () => comm.allGather(tag, own, all, hidden, counts)
    case 'reduce_scatter':
      return scatter
    case 'scatter, norm':
      return function* () {
        yield* scatter()
        addNorm(rows)
      }
    case 'reduce_norm': {
      const kernels = windows.map(w => ops.sumAddRmsNorm({ ...norm, out, xs: w.members, first: w.first }))
      return function* () {
        kernels[yield* comm.reduce(tag, all, hidden, range)](rows)
      }
    }
    case 'norm, gather':
      return function* () {
        addNorm(rows)
        yield* comm.allGather(tag, out, all, hidden, counts)
      }
    default: {
      const kernels = windows.map(w => ops.addRmsNorm({ ...norm, out: w.members[member], x: own }))
      return function* () {
        kernels[comm.nextParity](rows)
        yield* comm.allGatherWritten(tag, all, hidden, counts)
      }
    }
  }
}

function work() {
  const { control, group, rank, hidden, cores } = workerData
  const block = ControlBlock.attach(control)
  const comm = new ShmCommunicator(block, group, rank)
  const { ops } = createCpuDevice()
  const policy = spinPolicy(group.ranks.length, cores)
  const run = step => drive(step, policy, () => {})
  const cases = CASES.map(({ name, rows }, c) => {
    const once = caseOf(name, comm, ops, rows, hidden, { operation: c, layer: 0, label: name })
    return { once, inner: rows > 16 ? 50 : 200, times: [] }
  })
  for (let rep = 0; rep <= REPEATS; rep++) {
    for (const { once, inner, times } of cases) {
      run(comm.barrier({ operation: -1, layer: -1, label: 'begin' }))
      const begin = performance.now()
      for (let i = 0; i < inner; i++) run(once())
      if (rep > 0) times.push(((performance.now() - begin) * 1000) / inner)
    }
  }
  const results = cases.map(({ times }) => times.sort((a, b) => a - b))
  parentPort.postMessage(results.map(times => ({ median: times[times.length >> 1], best: times[0] })))
}

async function main() {
  const at = process.argv.indexOf('--hidden')
  const hidden = at < 0 ? 256 : Number(process.argv[at + 1])
  const given = process.argv.indexOf('--ranks')
  const sizes = given < 0 ? [2, 4, 8] : process.argv[given + 1].split(',').map(Number)
  const table = []
  for (const size of sizes) {
    const control = ControlBlock.create(size)
    const ranks = Array.from({ length: size }, (_, r) => r)
    const memory = lendExchange(new HostMemoryLender(), 'bench', size, 256 * size * hidden * 4)
    const group = { name: 'bench', index: 0, ranks, memory }
    const all = await Promise.all(
      ranks.map(
        rank =>
          new Promise((resolve, reject) => {
            const worker = new Worker(new URL(import.meta.url), {
              workerData: { control: control.buffer, group, rank, hidden, cores: availableParallelism() },
            })
            worker.once('message', resolve)
            worker.once('error', reject)
          }),
      ),
    )
    CASES.forEach(({ name, rows }, c) => {
      table.push({
        ranks: size,
        collective: name,
        rows,
        us: Math.max(...all.map(r => r[c].median)),
        best: Math.max(...all.map(r => r[c].best)),
      })
    })
  }
  const machine = `${cpus()[0].model}, ${cpus().length} cores`
  if (process.argv.includes('--json')) console.log(JSON.stringify({ machine, hidden, table }, null, 2))
  else {
    console.log(`${machine}; hidden ${hidden}, f32, rows of each rank, median of ${REPEATS} (best), slowest rank`)
    for (const t of table)
      console.log(
        `${t.ranks} ranks  ${t.collective.padEnd(15)} ${String(t.rows).padStart(4)} rows ${t.us.toFixed(1).padStart(9)} µs (${t.best.toFixed(1)})`,
      )
  }
}
