// Every kernel compiles: by nvcc where there is one, and by NVRTC, which compiles them at start, where there is that.
// What compiled once is remembered by content, so that only changed files cost time.
import { execFile } from 'node:child_process'
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { expect, test } from 'vitest'
import { CompileCache, cacheKey, collectSources } from './compile-cache.js'
import { architectureOf, COMMON_OPTIONS, isHopperOnly, KERNEL_FOLDER, KernelCompiler } from './compiler.js'
import { searchLibraries } from './libraries.js'
import { Nvrtc } from './nvrtc.js'

const run = promisify(execFile)
const CACHE = new CompileCache(fileURLToPath(new URL('../../../build/cuda-compile-test', import.meta.url)))
const MINUTES = 60_000
const PARALLEL = 2

const kernelFiles = readdirSync(KERNEL_FOLDER).filter(name => name.endsWith('.cu'))
const sourcesOf = (file: string) => collectSources(file, name => readFileSync(join(KERNEL_FOLDER, name), 'utf8'))
const nvcc = await run('nvcc', ['--version']).then(
  ({ stdout }) => stdout.trim().split('\n').at(-1)!,
  () => null,
)
const { handle: nvrtcLibrary } = searchLibraries().found.nvrtc

/** Compiles, or throws with what nvcc says. */
async function compileWithNvcc(file: string, capability: number): Promise<void> {
  const architecture = architectureOf(capability)
  const virtual = architecture.replace('sm_', 'compute_')
  const options = [`-gencode=arch=${virtual},code=${architecture}`, ...COMMON_OPTIONS]
  const key = cacheKey(sourcesOf(file), options, nvcc!)
  const label = `nvcc-${file.replace(/\.cu$/, '')}-${architecture}`
  if (CACHE.has(label, key)) return
  const folder = mkdtempSync(join(tmpdir(), 'switchyard-nvcc-'))
  try {
    const out = join(folder, 'out.cubin')
    await run('nvcc', ['-cubin', ...options, '-I', KERNEL_FOLDER, join(KERNEL_FOLDER, file), '-o', out])
    mkdirSync(CACHE.folder, { recursive: true })
    CACHE.get(label, key, () => readFileSync(out))
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}

const jobs = kernelFiles.flatMap(file =>
  (isHopperOnly(file) ? [90] : [80, 90]).map(capability => ({ file, capability })),
)

test.skipIf(nvcc === null)('nvcc compiles every kernel', { timeout: 20 * MINUTES }, async () => {
  expect(jobs.length).toBeGreaterThan(0)
  const queue = [...jobs]
  const failures: string[] = []
  const work = async () => {
    for (let job = queue.shift(); job !== undefined; job = queue.shift()) {
      const { file, capability } = job
      await compileWithNvcc(file, capability).catch((error: Error & { stderr?: string }) => {
        failures.push(`${file}, ${architectureOf(capability)}: ${error.stderr ?? error.message}`)
      })
    }
  }
  await Promise.all(Array.from({ length: PARALLEL }, work))
  expect(failures).toEqual([])
})

test.skipIf(nvrtcLibrary === null)('NVRTC compiles every kernel', { timeout: 20 * MINUTES }, () => {
  expect(jobs.length).toBeGreaterThan(0)
  const nvrtc = new Nvrtc(nvrtcLibrary!)
  for (const { file, capability } of jobs)
    expect(new KernelCompiler(nvrtc, capability, CACHE).compile(file).length, file).toBeGreaterThan(0)
})
