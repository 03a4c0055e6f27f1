// What a barrier and the moves of a layer cost between ranks as worker threads: barrier, all-gather and reduce-scatter
// of decode-sized and chunk-sized rows. Usage: node bench/collectives.mjs [--hidden 256] [--json]; needs `npm run build`.
import { availableParallelism, cpus } from 'node:os'
import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads'
import { lendExchange, ShmCommunicator } from '../dist/comm/index.js'
import { HostMemoryLender } from '../dist/device/memory.js'
import { ControlBlock } from '../dist/runtime/control.js'
import { drive, spinPolicy } from '../dist/runtime/wait.js'

const CASES = [
  { name: 'barrier', rows: 0 },
  { name: 'all_gather', rows: 1 },
  { name: 'all_gather', rows: 16 },
  { name: 'all_gather', rows: 256 },
  { name: 'reduce_scatter', rows: 1 },
  { name: 'reduce_scatter', rows: 16 },
  { name: 'reduce_scatter', rows: 256 },
]

if (isMainThread) await main()
else work()

function work() {
  const { control, group, rank, hidden, cores } = workerData
  const block = ControlBlock.attach(control)
  const comm = new ShmCommunicator(block, group, rank)
  const lender = new HostMemoryLender()
  const size = group.ranks.length
  const operand = rows => ({ span: lender.lend(Math.max(1, rows) * hidden * 4, 'bench'), offset: 0, stride: hidden })
  const policy = spinPolicy(size, cores)
  const run = step => drive(step, policy, () => {})
  const results = CASES.map(({ name, rows }, c) => {
    const tag = { operation: c, layer: 0, label: name }
    const counts = Array(size).fill(rows)
    const [own, all] = [operand(rows), operand(rows * size)]
    const once = () => {
      if (name === 'barrier') return comm.barrier(tag)
      if (name === 'all_gather') return comm.allGather(tag, own, all, hidden, counts)
      return comm.reduceScatter(tag, all, own, hidden, counts)
    }
    const times = []
    const inner = rows > 16 ? 50 : 300
    for (let rep = 0; rep < 7; rep++) {
      run(comm.barrier(tag))
      const begin = performance.now()
      for (let i = 0; i < inner; i++) run(once())
      times.push(((performance.now() - begin) * 1000) / inner)
    }
    return times.sort((a, b) => a - b)[3]
  })
  parentPort.postMessage(results)
}

async function main() {
  const at = process.argv.indexOf('--hidden')
  const hidden = at < 0 ? 256 : Number(process.argv[at + 1])
  const table = []
  for (const size of [2, 4, 8]) {
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
      table.push({ ranks: size, collective: name, rows, us: Math.max(...all.map(r => r[c])) })
    })
  }
  const machine = `${cpus()[0].model}, ${cpus().length} cores`
  if (process.argv.includes('--json')) console.log(JSON.stringify({ machine, hidden, table }, null, 2))
  else {
    console.log(`${machine}; hidden ${hidden}, f32, rows of each rank, median of 7, slowest rank`)
    for (const t of table)
      console.log(
        `${t.ranks} ranks  ${t.collective.padEnd(15)} ${String(t.rows).padStart(4)} rows ${t.us.toFixed(1).padStart(9)} µs`,
      )
  }
}
