// What the tests of kernels without a GPU share: files of kernels/cuda are compiled as C++ beside files that say what the
// machine's instructions do, and run. Programs print a line "ok …" or "FAIL …" a case. Needs a C++ compiler.
import { execFileSync, spawnSync } from 'node:child_process'
import { copyFileSync, mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { basename, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { expect } from 'vitest'

const COMPILER = process.env['CXX'] ?? 'g++'
const KERNELS = fileURLToPath(new URL('../kernels/cuda', import.meta.url))
const MACHINE = fileURLToPath(new URL('cuda-emulator/machine.h', import.meta.url))

/** Tests are skipped where there is none. */
export const noCompiler = spawnSync(COMPILER, ['--version']).status !== 0

export const filesOf = (folder: string): string[] => readdirSync(folder).map(name => join(folder, name))

export interface CompileOptions {
  readonly standard?: 'c++17' | 'c++20'
  readonly defines?: readonly string[]
  readonly warnings?: boolean
}

export class EmulatedKernels {
  readonly #folder = mkdtempSync(join(tmpdir(), 'switchyard-emulated-'))

  /**
   * @param kernels names of files of kernels/cuda, or which of them
   * @param replacing paths of programs and of files that take the place of kernels' own of the same name
   */
  constructor(kernels: readonly string[] | RegExp, replacing: readonly string[]) {
    const names = kernels instanceof RegExp ? readdirSync(KERNELS).filter(name => kernels.test(name)) : kernels
    for (const path of [...names.map(name => join(KERNELS, name)), MACHINE, ...replacing])
      copyFileSync(path, join(this.#folder, basename(path)))
  }

  /** Compiles NAME.cpp. */
  compile(name: string, { standard = 'c++17', defines = [], warnings = true }: CompileOptions = {}): void {
    const warn = warnings ? ['-Wall', '-Wno-unknown-pragmas', '-Wno-unused-variable', '-Wno-unused-function'] : ['-w']
    const flags = [`-std=${standard}`, '-O1', ...warn, ...defines]
    execFileSync(COMPILER, [...flags, `${name}.cpp`, '-o', name], { cwd: this.#folder, stdio: 'inherit' })
  }

  /** Runs it: every case is right, and there are at least so many. */
  expectOk(name: string, args: readonly string[], least: number): void {
    const { status, stdout, stderr } = spawnSync(join(this.#folder, name), args, { encoding: 'utf8' })
    expect(stdout).not.toMatch(/FAIL/)
    expect(stderr).toBe('')
    expect(stdout.match(/^ok /gm)?.length).toBeGreaterThanOrEqual(least)
    expect(status).toBe(0)
  }

  remove(): void {
    rmSync(this.#folder, { recursive: true, force: true })
  }
}
