// The kernels of products, compiled as C++ and run on an emulated block of threads (../cuda-emulator/machine.h), against double precision.
// Needs a C++ compiler and no GPU.
import { execFileSync, spawnSync } from 'node:child_process'
import { copyFileSync, mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { expect, it } from 'vitest'

const here = fileURLToPath(new URL('.', import.meta.url))
const emulator = fileURLToPath(new URL('../cuda-emulator', import.meta.url))
const kernels = fileURLToPath(new URL('../../kernels/cuda', import.meta.url))
const compiler = process.env['CXX'] ?? 'g++'
const missing = spawnSync(compiler, ['--version']).status !== 0

it.skipIf(missing).each([
  ['products', 3 * 17 + 1],
  ['gemv', 2 * 11 + 2],
])('%s on an emulated GPU', { timeout: 120_000 }, (program, cases) => {
  const folder = mkdtempSync(join(tmpdir(), 'switchyard-products-'))
  try {
    for (const name of readdirSync(here)) copyFileSync(join(here, name), join(folder, name))
    copyFileSync(join(emulator, 'machine.h'), join(folder, 'machine.h'))
    for (const name of [
      'gemm_skinny_sm90.cu',
      'grouped_gemm_sm90.cu',
      'grouped_gemm_mma.cu',
      'expert_rows.cu',
      'gemv.cu',
    ])
      copyFileSync(join(kernels, name), join(folder, name))
    const flags = ['-std=c++20', '-O1', '-w']
    execFileSync(compiler, [...flags, `${program}.cpp`, '-o', program], { cwd: folder, stdio: 'inherit' })
    const { status, stdout, stderr } = spawnSync(join(folder, program), { encoding: 'utf8' })
    expect(stderr).toBe('')
    expect(stdout).not.toMatch(/FAIL/)
    expect(stdout.match(/^ok /gm)).toHaveLength(cases)
    expect(status).toBe(0)
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
})
