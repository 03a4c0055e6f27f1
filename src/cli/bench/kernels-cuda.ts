// `switchyard bench kernels --device cuda`: kernels of a GPU, each beside the time that its bytes or its operations would take at
// best, with the results checked in the same run.
import { Command } from 'commander'
import { ConfigError } from '../../config/config-errors.js'
import type { FlagTable } from '../../config/flag-spec.js'
import { attentionBenches } from '../../device/cuda/bench/attention.js'
import { BenchDevice, type KernelBench, type KernelFigure, LIMITS } from '../../device/cuda/bench/bench.js'
import { gemmBenches } from '../../device/cuda/bench/gemm.js'
import { layerBenches } from '../../device/cuda/bench/layer.js'
import { rowBenches } from '../../device/cuda/bench/rows.js'
import { smallBenches } from '../../device/cuda/bench/small.js'
import { CudaError } from '../../device/cuda/errors.js'
import { addFlags, takeFlags } from '../flag-options.js'
import type { CliIo } from '../io.js'
import { printReport, table } from '../report.js'
import { version } from '../version.js'

const BENCHES: readonly KernelBench[] = [
  ...gemmBenches,
  ...layerBenches,
  ...attentionBenches,
  ...smallBenches,
  ...rowBenches,
]
const NAMES = BENCHES.map(b => b.name)
const group = 'Workload'

const KERNEL_FLAGS = {
  device: {
    name: 'device',
    type: 'string',
    default: 'cuda',
    pattern: /^cuda(:\d{1,2})?$/,
    patternHelp: 'cuda or cuda:N',
    group,
    help: 'which GPU; kernels of the CPU are timed by bench/kernels.mjs',
  },
  repetitions: {
    name: 'repetitions',
    type: 'integer',
    min: 1,
    max: 1000,
    default: 20,
    group,
    help: 'runs of each kernel; medians are reported',
  },
  only: {
    name: 'only',
    type: 'string',
    default: NAMES.join(','),
    group,
    help: `which kernels, with commas between them: ${NAMES.join(', ')}`,
  },
} as const satisfies FlagTable

export interface KernelReport {
  readonly version: string
  readonly device: string
  readonly limits: typeof LIMITS
  readonly results: readonly (KernelFigure & { readonly bench: string })[]
}

export function benchKernelsCommand(io: CliIo): Command {
  return addFlags(new Command('kernels'), KERNEL_FLAGS)
    .option('--json', 'one JSON object on stdout and nothing else')
    .summary('measure kernels of a GPU')
    .description(
      'Times the kernels of a GPU on random data, beside the time that their bytes or operations would take at best. Results are checked in the same run; a wrong one ends the command with code 1.',
    )
    .addHelpText(
      'after',
      '\nExamples:\n  switchyard bench kernels --device cuda\n  switchyard bench kernels --device cuda --only grouped,masked --json',
    )
    .action((options: Readonly<Record<string, unknown>>) => {
      const flags = takeFlags(KERNEL_FLAGS, options)
      const wanted = flags.only.split(',').map(name => name.trim())
      const unknown = wanted.find(name => !NAMES.includes(name))
      if (unknown !== undefined)
        throw new ConfigError('SY_CONFIG_BAD_VALUE', {
          flag: '--only',
          value: JSON.stringify(unknown),
          expected: `some of ${NAMES.join(', ')}`,
          suggestion: '',
        })
      using device = new BenchDevice(Number(flags.device.split(':')[1] ?? 0), flags.repetitions)
      const results: KernelReport['results'][number][] = []
      for (const bench of BENCHES.filter(b => wanted.includes(b.name))) {
        io.err(`measuring ${bench.name}\n`)
        for (const found of bench.run(device)) results.push({ bench: bench.name, ...found })
        device.release()
      }
      const { name } = device.kernels.properties
      const report: KernelReport = { version, device: name, limits: LIMITS, results }
      printReport(io, options['json'] === true, report, () => asText(report))
      const wrong = results.filter(r => r.worst !== null && !(r.worst <= 1))
      for (const { kernel, shape, worst } of wrong)
        throw new CudaError('SY_CUDA_WRONG_RESULT', { kernel, shape, ratio: worst! })
    })
}

function asText({ version: release, device, limits, results }: KernelReport): string {
  const us = (value: number): string => value.toFixed(value < 100 ? 1 : 0)
  const rows = results.map(r => [
    r.bench,
    r.kernel,
    r.shape,
    us(r.medianUs),
    us(r.minUs),
    us(r.limitUs),
    r.limit,
    `${((100 * r.limitUs) / r.medianUs).toFixed(0)}%`,
    r.limit === 'memory'
      ? `${(r.bytes / r.medianUs / 1e6).toFixed(2)} TB/s`
      : `${(r.flop / r.medianUs / 1e6).toFixed(0)} TFLOP/s`,
    r.worst === null ? '' : r.worst.toFixed(3),
  ])
  const head = [
    'bench',
    'kernel',
    'shape',
    'median µs',
    'best µs',
    'limit µs',
    'limit',
    'of limit',
    'rate',
    'error / bound',
  ]
  return `Switchyard ${release} on ${device}
Limits: ${(limits.bytesPerSecond / 1e12).toFixed(1)} TB/s, ${(limits.flopPerSecond / 1e12).toFixed(0)} TFLOP/s in bf16 (copy and 8192³ product measured on an H200).

${table(head, rows)}`
}
