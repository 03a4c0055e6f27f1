// `switchyard bench engine DIR`: prompt and decode speed for several batch sizes, and the share of the memory bandwidth
// that decoding uses, measured in the same minute on the same machine.
import { Command, Option } from 'commander'
import { ConfigError } from '../../config/config-errors.js'
import type { FlagTable } from '../../config/flag-spec.js'
import type { EngineFlags } from '../../config/flags.js'
import { engineModule } from '../engine.js'
import { addEngineFlags, addFlags, takeEngineFlags, takeFlags } from '../flag-options.js'
import type { CliIo } from '../io.js'
import { bytes, printReport, table } from '../report.js'
import { version } from '../version.js'
import { ABLATION_AXES, ablateEngine, ablationText, parseAxes } from './ablate.js'
import { readBandwidth } from './bandwidth.js'
import { benchEngineCuda, cudaBenchText } from './engine-cuda.js'
import { type BenchMachine, type BenchOptions, benchMachine, measureEngine, roomFor } from './measure-engine.js'
import type { Speed } from './run.js'
import { decodeStepBytes } from './step-bytes.js'

const BENCH_FLAGS = {
  promptTokens: {
    name: 'prompt-tokens',
    type: 'integer',
    min: 1,
    max: 1 << 20,
    default: null,
    defaultHelp: '256; on a GPU 448',
    group: 'Workload',
    help: 'tokens of each prompt',
  },
  outputTokens: {
    name: 'output-tokens',
    type: 'integer',
    min: 2,
    max: 1 << 20,
    default: 128,
    group: 'Workload',
    help: 'tokens to make for each prompt',
  },
  seed: {
    name: 'seed',
    type: 'integer',
    min: 0,
    max: 0xffffffff,
    default: 1,
    group: 'Workload',
    help: 'seed of the random prompts',
  },
} as const satisfies FlagTable

export interface BenchRow extends Speed {
  /** Bytes that one decode step reads, counted from the program. */
  readonly stepBytes: number
  /** stepBytes / step time / measured bandwidth. */
  readonly bandwidthShare: number
}

export interface BenchReport {
  readonly version: string
  readonly machine: BenchMachine
  readonly model: string
  readonly dtype: string
  readonly kernels: string
  readonly promptTokens: number
  readonly outputTokens: number
  readonly seed: number
  /** Of one core, the best of passes before and after. */
  readonly readBytesPerSecond: number
  readonly results: readonly BenchRow[]
}

export function benchEngineCommand(io: CliIo): Command {
  const command = addEngineFlags(new Command('engine')).addOption(
    new Option('--batches <list>', 'numbers of streams that run together')
      .default(null, '1,8,32; on a GPU 1,32,128')
      .helpGroup('Workload:'),
  )
  command.addOption(
    new Option('--ablate <axes>', `repeat for every choice of these axes: ${ABLATION_AXES.join(',')}`).helpGroup(
      'Workload:',
    ),
  )
  return addFlags(command, BENCH_FLAGS)
    .option('--json', 'one JSON object on stdout and nothing else')
    .summary('measure prompt and decode speed')
    .description(
      'Measures prompt and decode tokens/s of a model, and the share of the memory bandwidth that decoding uses.',
    )
    .addHelpText(
      'after',
      '\nExamples:\n  switchyard bench engine models/demo\n  switchyard bench engine models/demo --batches 1,4 --output-tokens 64 --json\n  switchyard bench engine models/demo --tp-size 2 --attn-dp-size 2 --ablate dispatch,padding\n  switchyard bench engine DIR --device cuda --load-format dummy --ep-dispatch-algorithm fake',
    )
    .action(async (dir: string | undefined, options: Readonly<Record<string, unknown>>) => {
      const flags = takeEngineFlags('bench engine', dir, options)
      const onGpu = flags.device !== 'cpu'
      const { promptTokens, ...rest } = takeFlags(BENCH_FLAGS, options)
      const batches = parseBatches((options['batches'] as string | null) ?? (onGpu ? '1,32,128' : '1,8,32'))
      const workload = { ...rest, promptTokens: promptTokens ?? (onGpu ? 448 : 256), batches }
      const json = options['json'] === true
      if (onGpu) {
        if (options['ablate'] !== undefined) {
          throw new ConfigError('SY_CONFIG_CONFLICT', { first: '--ablate', second: `--device ${flags.device}` })
        }
        const report = await benchEngineCuda(io, flags, workload)
        printReport(io, json, report, () => cudaBenchText(report))
        return
      }
      if (options['ablate'] !== undefined) {
        const report = await ablateEngine(io, flags, workload, parseAxes(options['ablate'] as string))
        printReport(io, json, report, () => ablationText(report))
        return
      }
      const report = await benchEngine(io, flags, workload)
      printReport(io, json, report, () => asText(report))
    })
}

function parseBatches(text: string): readonly number[] {
  const batches = text.split(',').map(part => (/^\d+$/.test(part.trim()) ? Number(part) : 0))
  if (batches.every(batch => batch >= 1 && batch <= 4096)) return batches
  throw new ConfigError('SY_CONFIG_BAD_VALUE', {
    flag: '--batches',
    value: JSON.stringify(text.slice(0, 60)),
    expected: 'numbers from 1 to 4096 with commas between them',
    suggestion: '',
  })
}

export async function benchEngine(io: CliIo, flags: EngineFlags, options: BenchOptions): Promise<BenchReport> {
  const { promptTokens, outputTokens, seed } = options
  const { createCpuDevice } = await import('../../device/cpu/index.js')
  const { explainModel } = await engineModule()
  const device = createCpuDevice({ kernels: flags.kernels })
  const roomy = roomFor(flags, options)
  const before = readBandwidth(device)
  return measureEngine(io, roomy, options, (engine, speeds) => {
    const { kvBytesPerToken } = explainModel(roomy).memory
    const bandwidth = Math.max(before, readBandwidth(device))
    const results = speeds.map((speed): BenchRow => {
      const contextTokens = promptTokens + outputTokens / 2
      const stepBytes = decodeStepBytes(
        Object.values(engine.plan.programs[0]!)[0]!,
        engine.plan.dtype,
        speed.batch,
        contextTokens,
        kvBytesPerToken,
      ).total
      return { ...speed, stepBytes, bandwidthShare: stepBytes / (speed.decodeStepMs / 1000) / bandwidth }
    })
    return {
      version,
      machine: benchMachine(),
      model: engine.modelName,
      dtype: engine.plan.dtype === 'f32' ? 'float32' : 'bfloat16',
      kernels: device.name,
      promptTokens,
      outputTokens,
      seed,
      readBytesPerSecond: bandwidth,
      results,
    }
  })
}

function asText(report: BenchReport): string {
  const { machine } = report
  const rows = report.results.map(row => [
    String(row.batch),
    row.promptTokensPerSecond.toFixed(0),
    row.decodeTokensPerSecond.toFixed(1),
    row.decodeStepMs.toFixed(3),
    row.firstTokenMs.toFixed(1),
    bytes(row.stepBytes),
    `${(100 * row.bandwidthShare).toFixed(0)}%`,
  ])
  const head = ['streams', 'prompt tok/s', 'decode tok/s', 'step ms', 'first token ms', 'read a step', 'of bandwidth']
  return `Switchyard ${report.version} on ${machine.processor}, ${machine.cores} cores, Node ${machine.node}
${report.model}, ${report.dtype}, ${report.kernels}; prompts of ${report.promptTokens} random tokens, ${report.outputTokens} out, seed ${report.seed}
read bandwidth of one core, same minute: ${(report.readBytesPerSecond / 1e9).toFixed(1)} GB/s

${table(head, rows)}
`
}
