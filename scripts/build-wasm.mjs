// Compiles the CPU kernels into kernels/wasm/kernels.wasm and kernels-relaxed.wasm, the committed modules that run where no compiler was
// found: the second has fused multiply-adds (relaxed SIMD) and runs where Node has them.
// Only who changes kernels/ needs this script; it gets its compiler (Clang and LLD as WebAssembly, one pinned npm
// package) into build/, so the result is the same byte for byte on every machine.
//   node scripts/build-wasm.mjs [--check]
// --check: builds, and fails when a committed module differs. For CI.
import { spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'

const root = join(dirname(fileURLToPath(import.meta.url)), '..')
const kernels = join(root, 'kernels')

const PACKAGE = '@yowasp/clang'
const VERSION = '22.0.0-git20542-10'
const toolchain = join(root, 'build', 'wasm-toolchain')
const bundle = join(toolchain, 'node_modules', PACKAGE, 'gen', 'bundle.js')
const described = join(toolchain, 'node_modules', PACKAGE, 'package.json')

/** Everything but what belongs to N-API. */
const CPU_SOURCES = ['attention', 'bind', 'elementwise', 'experts', 'linear', 'pack', 'router', 'sample', 'table']
const FLAGS = ['--target=wasm32-unknown-unknown', '-std=c++17', '-O3', '-msimd128', '-mbulk-memory', '-matomics']
FLAGS.push('-mmutable-globals', '-msign-ext', '-mnontrapping-fptoint', '-ffreestanding', '-nostdlib', '-nostdinc++')
FLAGS.push('-fno-exceptions', '-fno-rtti', '-ffp-contract=off', '-fno-math-errno', '-fvisibility=hidden', '-DNDEBUG')
FLAGS.push('-Wall', '-Wno-unknown-pragmas', '-DSY_ISA=simd128', '-Iwasm/include', '-Icpu')
const MODULES = [
  { name: 'kernels.wasm', flags: [] },
  { name: 'kernels-relaxed.wasm', flags: ['-mrelaxed-simd'] },
]

const PAGE = 65536
const LINK = ['--no-entry', '--import-memory', '--shared-memory', `--initial-memory=${2 * PAGE}`]
// The first KiB stays free: address 0 is nobody's, and the node leaves its mark there (src/device/cpu/wasm-memory.ts).
LINK.push(`--max-memory=${65536 * PAGE}`, '--global-base=1024', '-z', 'stack-size=16384', '--strip-all')
LINK.push('--no-stack-first', '--export=__stack_pointer')

function fetchToolchain() {
  if (existsSync(described) && JSON.parse(readFileSync(described, 'utf8')).version === VERSION) return
  mkdirSync(toolchain, { recursive: true })
  writeFileSync(join(toolchain, 'package.json'), '{ "private": true }\n')
  const args = ['install', '--prefix', toolchain, '--save-exact', '--ignore-scripts', '--no-audit', '--no-fund']
  const { status } = spawnSync('npm', [...args, `${PACKAGE}@${VERSION}`], { stdio: ['ignore', 'ignore', 'inherit'] })
  if (status !== 0) fail(`npm could not install ${PACKAGE}@${VERSION}, the compiler for WebAssembly.`)
}

function fail(message) {
  console.error(`switchyard: WebAssembly kernels not built: ${message}`)
  process.exit(1)
}

const text = (folder, name) => [name, readFileSync(join(kernels, folder, name), 'utf8')]
const folder = (name, wanted) =>
  Object.fromEntries(
    readdirSync(join(kernels, name))
      .filter(wanted)
      .map(f => text(name, f)),
  )

async function build(commands, flags) {
  const source = name => name.endsWith('.cpp') || name.endsWith('.h')
  let tree = {
    cpu: folder('cpu', source),
    wasm: { ...folder('wasm', source), include: folder('wasm/include', source) },
  }
  const said = []
  const quiet = { stderr: bytes => void (bytes && said.push(Buffer.from(bytes))), fetchProgress() {} }
  const step = async (tool, args) => {
    try {
      tree = { ...tree, ...(await commands[tool](args, tree, quiet)) }
    } catch (error) {
      fail(`${tool} ${args.at(-1)}\n${Buffer.concat(said)}${error.message}`)
    }
  }
  const objects = []
  for (const file of [...CPU_SOURCES.map(s => `cpu/${s}.cpp`), 'wasm/module.cpp']) {
    const object = file.replaceAll('/', '-').replace('.cpp', '.o')
    await step('clang++', [...FLAGS, ...flags, '-c', file, '-o', object])
    objects.push(object)
  }
  await step('wasm-ld', [...LINK, ...objects, '-o', 'kernels.wasm'])
  if (said.length > 0) process.stderr.write(Buffer.concat(said))
  return Buffer.from(tree['kernels.wasm'])
}

fetchToolchain()
const { commands } = await import(pathToFileURL(bundle).href)
for (const { name, flags } of MODULES) {
  const started = performance.now()
  const target = join(kernels, 'wasm', name)
  const built = await build(commands, flags)
  const same = existsSync(target) && readFileSync(target).equals(built)
  const facts = `${built.length} bytes, ${((performance.now() - started) / 1000).toFixed(0)} s`
  if (process.argv.includes('--check')) {
    if (!same) fail(`kernels/wasm/${name} is not what the sources give: run node scripts/build-wasm.mjs, commit it.`)
    console.error(`switchyard: kernels/wasm/${name} is what the sources give (${facts})`)
  } else {
    if (!same) writeFileSync(target, built)
    console.error(`switchyard: kernels/wasm/${name} ${same ? 'unchanged' : 'built'} (${facts})`)
  }
}
