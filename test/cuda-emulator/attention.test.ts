// The attention kernels, compiled as C++ and run on an emulated block of threads (machine.h), against a double-precision oracle. Needs a
// C++ compiler and no GPU.
import { execFileSync, spawnSync } from 'node:child_process'
import { copyFileSync, mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'

const here = fileURLToPath(new URL('.', import.meta.url))
const kernels = fileURLToPath(new URL('../../kernels/cuda', import.meta.url))
const compiler = process.env['CXX'] ?? 'g++'
const missing = spawnSync(compiler, ['--version']).status !== 0

describe.skipIf(missing)('attention kernels on an emulated GPU', () => {
  let folder: string
  beforeAll(() => {
    folder = mkdtempSync(join(tmpdir(), 'switchyard-emulator-'))
    for (const name of readdirSync(kernels))
      if (/^attention_.*\.cuh?$/.test(name)) copyFileSync(join(kernels, name), join(folder, name))
    // These replace what the instructions of the machine are.
    for (const name of readdirSync(here))
      if (/^attention.*\.(cuh|cpp)$|^machine\.h$/.test(name)) copyFileSync(join(here, name), join(folder, name))
    const flags = ['-std=c++17', '-O1', '-Wall', '-Wno-unknown-pragmas', '-Wno-unused-variable']
    execFileSync(compiler, [...flags, 'attention.cpp', '-o', 'attention'], { cwd: folder, stdio: 'inherit' })
  }, 120_000)
  afterAll(() => rmSync(folder, { recursive: true, force: true }))

  it.each(['decode', 'prefill', 'hopper', 'latent'])('%s', cases => {
    const { status, stdout, stderr } = spawnSync(join(folder, 'attention'), [cases], { encoding: 'utf8' })
    expect(stderr).toBe('')
    expect(stdout).not.toMatch(/FAIL/)
    expect(stdout.match(/^ok /gm)?.length).toBeGreaterThanOrEqual(6)
    expect(status).toBe(0)
  })
})
