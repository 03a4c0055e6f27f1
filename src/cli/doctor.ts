// `switchyard doctor`: what this machine offers and which kernels run, and why. Exits with 1 when something needed is
// missing; a slow or absent extra is only a warning.
import { execFileSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import { availableParallelism, cpus, freemem, totalmem } from 'node:os'
import { fileURLToPath } from 'node:url'
import { Command } from 'commander'
import type { CudaReport } from '../device/cuda/report.js'
import type { Check } from './doctor-check.js'
import { cudaChecks } from './doctor-cuda.js'
import { type CliIo, colors } from './io.js'
import { bytes, printReport } from './report.js'
import { version } from './version.js'

export interface DoctorReport {
  readonly version: string
  readonly checks: readonly Check[]
  readonly kernels: {
    readonly kind: string
    readonly isa: string
    readonly available: readonly string[]
    readonly reason: string
  }
  /** Libraries, GPUs and links between them. */
  readonly cuda: CudaReport
}

export function doctorCommand(io: CliIo, exit: (code: number) => void): Command {
  return new Command('doctor')
    .option('--json', 'one JSON object on stdout and nothing else')
    .summary('check this machine and say which kernels run')
    .description('Checks this machine: Node, cores, memory, kernels, GPUs, the demo model.')
    .addHelpText('after', '\nExamples:\n  switchyard doctor\n  switchyard doctor --json')
    .action(async (options: Readonly<Record<string, unknown>>) => {
      const report = await examine(io.env)
      printReport(io, options['json'] === true, report, () => asText(report, io))
      exit(report.checks.some(check => check.status === 'fail') ? 1 : 0)
    })
}

export async function examine(env: CliIo['env']): Promise<DoctorReport> {
  const { createCpuDevice } = await import('../device/cpu/index.js')
  const { examineCuda } = await import('../device/cuda/report.js')
  const { kernels } = createCpuDevice()
  const cuda = examineCuda(env)
  const compiler = findCompiler(env)
  const native = kernels.kind === 'native'
  const checks: Check[] = [
    nodeCheck(process.versions.node),
    {
      name: 'processor',
      status: 'ok',
      found: `${cpus()[0]?.model.trim() ?? process.arch}, ${availableParallelism()} cores for this process`,
      fix: '',
    },
    memoryCheck(),
    {
      name: 'kernels',
      status: native ? 'ok' : 'warn',
      found: `${kernels.kind}${kernels.isa === 'none' ? '' : ` (${kernels.isa})`}: ${kernels.reason}`,
      fix: native ? '' : kernelsFix(env, compiler),
    },
    {
      name: 'compiler',
      status: compiler !== null || native ? 'ok' : 'warn',
      found: compiler ?? 'none found (CXX, g++, clang++)',
      fix: compiler !== null || native ? '' : 'install g++ or clang++ to get fast kernels',
    },
    ...cudaChecks(cuda),
    demoCheck(),
  ]
  const { kind, isa, available, reason } = kernels
  return { version, checks, kernels: { kind, isa, available, reason }, cuda }
}

function kernelsFix(env: CliIo['env'], compiler: string | null): string {
  if (env['SWITCHYARD_NO_ADDON'] === '1') return 'unset SWITCHYARD_NO_ADDON to run native kernels'
  if (compiler === null) return 'install g++ or clang++, then run npm rebuild'
  return 'run node scripts/build-kernels.mjs and read what it says'
}

function nodeCheck(node: string): Check {
  const [major = 0, minor = 0] = node.split('.').map(Number)
  const good = major > 20 || (major === 20 && minor >= 19)
  return { name: 'node', status: good ? 'ok' : 'fail', found: node, fix: good ? '' : 'install Node 20.19 or later' }
}

function memoryCheck(): Check {
  const limit = process.constrainedMemory?.() ?? 0
  const total = limit > 0 && limit < totalmem() ? limit : totalmem()
  const small = total < 1 << 30
  return {
    name: 'memory',
    status: small ? 'warn' : 'ok',
    found: `${bytes(total)}${total < totalmem() ? ' (limit of the container)' : ''}, ${bytes(freemem())} free`,
    fix: small ? 'use small models, or a machine with more memory' : '',
  }
}

function demoCheck(): Check {
  const there = existsSync(fileURLToPath(new URL('../../models/demo/model.safetensors', import.meta.url)))
  return {
    name: 'demo model',
    status: there ? 'ok' : 'warn',
    found: there ? 'models/demo is there' : 'models/demo is missing',
    fix: there ? '' : 'reinstall the package, or name a checkpoint of your own',
  }
}

/** The first compiler that answers, with its version line. */
function findCompiler(env: CliIo['env']): string | null {
  for (const name of [env['CXX'], 'g++', 'clang++']) {
    if (name === undefined || name === '') continue
    try {
      const text = execFileSync(name, ['--version'], {
        encoding: 'utf8',
        timeout: 5000,
        stdio: ['ignore', 'pipe', 'ignore'],
      })
      return `${name}: ${text.split('\n')[0]}`
    } catch {
      // Not this one.
    }
  }
  return null
}

function asText({ version: v, checks }: DoctorReport, io: CliIo): string {
  const paint = colors(io, io.outIsTerminal)
  const sign = { ok: paint.green('ok  '), warn: paint.yellow('warn'), fail: paint.red('fail') } as const
  const width = Math.max(...checks.map(check => check.name.length))
  const lines = checks.flatMap(({ name, status, found, fix }) => [
    `${sign[status]}  ${name.padEnd(width)}  ${found}`,
    ...(fix === '' ? [] : [`${' '.repeat(6 + width)}  fix: ${fix}`]),
  ])
  return `Switchyard ${v}\n${lines.join('\n')}\n`
}
