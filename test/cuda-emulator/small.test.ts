// Small kernels, compiled as C++ and run on an emulated block of threads (machine.h), against plain computations. Needs a C++
// compiler and no GPU.
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

describe.skipIf(missing)('small kernels on an emulated GPU', () => {
  let folder: string
  beforeAll(() => {
    folder = mkdtempSync(join(tmpdir(), 'switchyard-emulator-'))
    for (const name of [
      'elements.cuh',
      'sample_row.cuh',
      'sample_radix.cuh',
      'sample.cu',
      'router.cu',
      'fused_qk.cu',
      'norm.cu',
    ])
      copyFileSync(join(kernels, name), join(folder, name))
    // These replace what the instructions of the machine are.
    for (const name of readdirSync(join(here, 'small'))) copyFileSync(join(here, 'small', name), join(folder, name))
    copyFileSync(join(here, 'machine.h'), join(folder, 'machine.h'))
  })
  afterAll(() => rmSync(folder, { recursive: true, force: true }))

  it.each([
    ['sample', 42, []],
    // So short that what one block would list and sort is selected by radix.
    ['sample', 42, ['-DSAMPLE_LIST=16']],
    ['router', 46, []],
    ['rows', 32, []],
  ])(
    '%s, %i cases %j',
    (name, cases, defines) => {
      const flags = [
        '-std=c++17',
        '-O1',
        '-Wall',
        '-Wno-unknown-pragmas',
        '-Wno-unused-variable',
        '-Wno-unused-function',
      ]
      execFileSync(compiler, [...flags, ...defines, `${name}.cpp`, '-o', name], { cwd: folder, stdio: 'inherit' })
      const { status, stdout, stderr } = spawnSync(join(folder, name), { encoding: 'utf8' })
      expect(stderr).toBe('')
      expect(stdout).not.toMatch(/FAIL/)
      expect(stdout.match(/^ok /gm)?.length).toBeGreaterThanOrEqual(cases)
      expect(status).toBe(0)
    },
    180_000,
  )
})
