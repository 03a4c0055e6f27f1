// Expert parallelism between GPUs, its kernels compiled as C++: several ranks of several blocks as fibers that take turns at random
// (common.cuh), against plain loops. Needs a C++ compiler and no GPU.
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
const CASES = process.env['SWITCHYARD_TEST_FULL'] ? 200 : 20

describe.skipIf(missing)('expert parallelism between emulated GPUs', () => {
  let folder: string
  beforeAll(() => {
    folder = mkdtempSync(join(tmpdir(), 'switchyard-ep-'))
    for (const name of ['ep.cuh', 'ep_normal_sm90.cu', 'ep_low_latency_sm90.cu'])
      copyFileSync(join(kernels, name), join(folder, name))
    for (const name of readdirSync(here)) copyFileSync(join(here, name), join(folder, name))
  })
  afterAll(() => rmSync(folder, { recursive: true, force: true }))

  it(`dispatches and combines in ${CASES} random groups, both modes, both parities, with dead members`, () => {
    const flags = ['-std=c++17', '-O1', '-Wall', '-Wno-unknown-pragmas', '-Wno-unused-variable', '-Wno-unused-function']
    execFileSync(compiler, [...flags, 'ep.cpp', '-o', 'ep'], { cwd: folder, stdio: 'inherit' })
    const { status, stdout } = spawnSync(join(folder, 'ep'), [String(CASES)], { encoding: 'utf8' })
    expect(stdout).not.toMatch(/FAIL/)
    expect(stdout.match(/^ok /gm)?.length).toBe(CASES + 1)
    expect(status).toBe(0)
  }, 300_000)
})
