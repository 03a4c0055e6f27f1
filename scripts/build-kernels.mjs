// Compiles kernels/cpu into build/switchyard_kernels.node with g++ or clang++ and the headers of node-api-headers.
// Each kernel source is compiled once per instruction set; the addon picks one at run time, so the result runs on any
// processor of the architecture. Nothing is downloaded and no node-gyp is needed.
//   node scripts/build-kernels.mjs [--optional] [--force]
// --optional: a missing or failing compiler is reported in one line and is no error (used by `npm ci`).
import { execFile, execFileSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { existsSync, mkdirSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { availableParallelism } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const root = join(dirname(fileURLToPath(import.meta.url)), '..')
const sources = join(root, 'kernels', 'cpu')
const build = join(root, 'build')
const target = join(build, 'switchyard_kernels.node')
const optional = process.argv.includes('--optional')
const force = process.argv.includes('--force')

/** Compiled once, for the architecture's lowest common denominator. */
const ONCE = ['addon.cpp', 'bind.cpp', 'memory.cpp', 'wire-bind.cpp']
const AVX2 = ['-mavx', '-mavx2', '-mfma', '-mf16c', '-mbmi', '-mbmi2', '-mlzcnt', '-mmovbe', '-mpopcnt']
const ISAS = {
  x64: {
    baseline: [],
    avx2: AVX2,
    avx512: [...AVX2, '-mavx512f', '-mavx512bw', '-mavx512vl', '-mavx512dq', '-mavx512cd', '-mprefer-vector-width=512'],
  },
  arm64: { neon: [] },
}
const FLAGS = ['-std=c++17', '-O3', '-fPIC', '-ffp-contract=off', '-fno-math-errno', '-fno-exceptions', '-fno-rtti']
FLAGS.push(
  '-fvisibility=hidden',
  '-Wall',
  '-Wno-psabi',
  '-Wno-ignored-attributes',
  '-Wno-unknown-warning-option',
  '-Wno-maybe-uninitialized',
  '-Wno-uninitialized',
  '-DNDEBUG',
)

const COST = 'Switchyard then runs WebAssembly kernels: prompts take 3 to 5 times as long, and models must fit 4 GiB.'

function give(up) {
  console.error(`switchyard: native CPU kernels not built: ${up}`)
  process.exit(optional ? 0 : 1)
}

function compilers() {
  const asked = process.env.CXX
  return asked ? [asked] : ['g++', 'clang++', 'c++']
}

function findCompiler() {
  for (const name of compilers()) {
    try {
      const [command, ...args] = name.split(' ')
      const version = execFileSync(command, [...args, '--version'], {
        encoding: 'utf8',
        stdio: ['ignore', 'pipe', 'ignore'],
      })
      return { command, args, version: version.split('\n')[0] }
    } catch {}
  }
  return undefined
}

function run(command, args) {
  return new Promise((resolve, reject) => {
    execFile(command, args, { maxBuffer: 1 << 24 }, (error, _stdout, stderr) => {
      if (error) reject(new Error(stderr.trim() || error.message))
      else resolve(stderr)
    })
  })
}

async function pool(jobs, width) {
  const queue = [...jobs]
  const lane = async () => {
    for (let job = queue.shift(); job; job = queue.shift()) await job()
  }
  await Promise.all(Array.from({ length: width }, lane))
}

const isas = ISAS[process.arch]
if (!isas) give(`there are none for ${process.arch}. ${COST}`)
if (process.platform === 'win32') give(`they are for Linux and macOS. ${COST}`)
const compiler = findCompiler()
if (!compiler) {
  const tried = compilers().join(', ')
  give(
    `no C++ compiler found (tried ${tried}). ${COST} Install one (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++; macOS: xcode-select --install), then run: node scripts/build-kernels.mjs`,
  )
}

let headers
try {
  headers = createRequire(import.meta.url)('node-api-headers').include_dir
} catch {
  give(`the npm package node-api-headers is missing: run npm ci, then node scripts/build-kernels.mjs. ${COST}`)
}

const files = readdirSync(sources)
  .filter(f => f.endsWith('.cpp') || f.endsWith('.h'))
  .sort()
const hash = createHash('sha256')
for (const file of files) hash.update(file).update(readFileSync(join(sources, file)))
hash.update(JSON.stringify([FLAGS, isas, compiler, process.platform, process.arch]))
const stamp = hash.digest('hex')
const stampFile = `${target}.stamp`
if (!force && existsSync(target) && existsSync(stampFile) && readFileSync(stampFile, 'utf8') === stamp) {
  process.exit(0)
}

console.error('switchyard: compiling native CPU kernels; it takes a minute or two on two cores')
const started = performance.now()
const work = join(build, `kernels-${process.pid}`)
mkdirSync(work, { recursive: true })
const objects = []
const compile = (source, object, flags) => async () => {
  const out = join(work, object)
  objects.push(out)
  const warnings = await run(compiler.command, [
    ...compiler.args,
    ...FLAGS,
    ...flags,
    '-I',
    headers,
    '-c',
    join(sources, source),
    '-o',
    out,
  ])
  if (warnings) console.error(warnings)
}
const jobs = []
for (const source of files.filter(f => f.endsWith('.cpp') && !ONCE.includes(f)))
  for (const [isa, flags] of Object.entries(isas))
    jobs.push(compile(source, `${source}.${isa}.o`, [`-DSY_ISA=${isa}`, ...flags]))
for (const source of ONCE) jobs.push(compile(source, `${source}.o`, []))
// The tile templates take longest: first.
try {
  await pool(jobs, Math.max(1, availableParallelism()))
  const link = process.platform === 'darwin' ? ['-bundle', '-undefined', 'dynamic_lookup'] : ['-shared']
  const fresh = join(work, 'switchyard_kernels.node')
  await run(compiler.command, [...compiler.args, ...link, '-o', fresh, ...objects.sort(), '-lm'])
  renameSync(fresh, target)
  writeFileSync(stampFile, stamp)
  const seconds = ((performance.now() - started) / 1000).toFixed(1)
  console.error(
    `switchyard: native CPU kernels built (${Object.keys(isas).join(', ')}) with ${compiler.version} in ${seconds} s`,
  )
} catch (error) {
  const first = String(error.message)
    .split('\n')
    .slice(0, optional ? 3 : 40)
    .join('\n')
  rmSync(work, { recursive: true, force: true })
  give(`${compiler.command} failed. ${COST}\n${first}`)
}
rmSync(work, { recursive: true, force: true })
