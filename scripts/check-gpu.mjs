// `npm run check:gpu [-- --only build,test,sanitizer,kernels,engine] [-- --out DIR]`: builds, checks and times on a machine with an
// NVIDIA GPU, one stage after the other, each into a file of DIR (build/gpu unless given). Ends with 1 if any stage failed.
import { spawn, spawnSync } from 'node:child_process'
import { createWriteStream, mkdirSync, readdirSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'

const root = fileURLToPath(new URL('..', import.meta.url))
const vitest = ['node_modules/vitest/vitest.mjs', 'run', '--config', 'vitest.gpu.config.ts']
const cli = 'bin/switchyard.js'
/** Under the sanitizer a kernel takes some hundred times as long: not the suites of long runs, nor those that break things on purpose. */
const LEFT_OUT = /^(bindings|engine(?!-fp8)|peer|attention-prefill|grouped-mma|ops(?!-)|ops-bf16\.|packer|trace)/

const EVEN_ROUTING = ['--ep-dispatch-algorithm', 'fake']

const suites = () =>
  readdirSync(join(root, 'test/gpu'))
    .filter(name => name.endsWith('.gpu.test.ts') && !LEFT_OUT.test(name))
    .map(name => `test/gpu/${name}`)

const STAGES = {
  build: () => [['scripts/build.mjs']],
  test: () => [[cli, 'doctor'], vitest],
  sanitizer: () => [
    [...vitest, ...suites()],
    [...vitest, 'test/gpu/peer.gpu.test.ts', '-t', '2 ranks, 33'],
  ],
  kernels: () => [[cli, 'bench', 'kernels', '--device', 'cuda']],
  engine: () => [
    [
      cli,
      'bench',
      'engine',
      'bench/models/qwen3-30b-a3b',
      '--device',
      'cuda',
      '--load-format',
      'dummy',
      ...EVEN_ROUTING,
    ],
  ],
}

const { values } = parseArgs({
  options: {
    only: { type: 'string', default: Object.keys(STAGES).join(',') },
    out: { type: 'string', default: join(root, 'build/gpu') },
  },
})
const wanted = values.only.split(',')
const unknown = wanted.find(name => !Object.hasOwn(STAGES, name))
if (unknown !== undefined) {
  console.error(`there is no stage ${unknown}: --only takes some of ${Object.keys(STAGES).join(', ')}`)
  process.exit(2)
}
mkdirSync(values.out, { recursive: true })

/** Tests let calls fail on purpose; what counts is what kernels do. */
const SANITIZER = [
  'compute-sanitizer',
  '--target-processes',
  'all',
  '--report-api-errors',
  'no',
  '--error-exitcode',
  '9',
]

/** @returns the exit code; output goes to the terminal and to `log` */
function run(args, stage, log) {
  const [command, ...rest] = [...(stage === 'sanitizer' ? SANITIZER : []), process.execPath, ...args]
  return new Promise(resolve => {
    const child = spawn(command, rest, { cwd: root, stdio: ['ignore', 'pipe', 'pipe'] })
    for (const stream of [child.stdout, child.stderr]) {
      stream.on('data', chunk => {
        process.stdout.write(chunk)
        log.write(chunk)
      })
    }
    child.on('error', error => {
      log.write(`${error.message}\n`)
      console.error(error.message)
      resolve(127)
    })
    child.on('close', code => resolve(code ?? 1))
  })
}

const results = []
for (const stage of Object.keys(STAGES).filter(name => wanted.includes(name))) {
  if (stage === 'sanitizer' && spawnSync('compute-sanitizer', ['--version']).error) {
    results.push([stage, 'left out: compute-sanitizer (of the CUDA toolkit) is not on PATH'])
    continue
  }
  const log = createWriteStream(join(values.out, `${stage}.txt`))
  let code = 0
  for (const args of STAGES[stage]()) code ||= await run(args, stage, log)
  log.end()
  results.push([stage, code === 0 ? 'passed' : `failed with ${code}`])
  // Nothing else means anything then.
  if (stage === 'build' && code !== 0) break
}
for (const [stage, said] of results) console.log(`${stage.padEnd(10)} ${said}`)
process.exitCode = results.some(([, said]) => said.startsWith('failed')) ? 1 : 0
