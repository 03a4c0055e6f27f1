// `switchyard bench ep`: how fast dispatch and combine move rows between worker threads, beside the same threads copying the
// same bytes in the same run.
import { availableParallelism, cpus } from 'node:os'
import { Command, Option } from 'commander'
import { ConfigError } from '../../config/config-errors.js'
import type { FlagTable } from '../../config/flag-spec.js'
import { addFlags, takeFlags } from '../flag-options.js'
import type { CliIo } from '../io.js'
import { printReport, table } from '../report.js'
import { version } from '../version.js'
import { benchEpCuda } from './ep-cuda.js'
import { PEER_COPY } from './ep-cuda-controls.js'
import type { EpCudaFigure } from './ep-cuda-figure.js'
import { EP_CUDA_PARTS } from './ep-cuda-prepare.js'
import { benchEp, EP_MODES, type EpRow } from './ep-run.js'
import { LINK_GBS, voidReason } from './ep-stored.js'

const WIRES = ['f32', 'bf16', 'fp8', 'int8'] as const
const group = 'Workload'

const EP_FLAGS = {
  tokens: { name: 'tokens', type: 'integer', min: 1, max: 65536, default: 1024, group, help: 'tokens of each rank' },
  lowLatencyTokens: {
    name: 'low-latency-tokens',
    type: 'integer',
    min: 1,
    max: 4096,
    default: 32,
    group,
    help: 'tokens of each rank in low-latency mode',
  },
  hidden: { name: 'hidden', type: 'integer', min: 1, max: 65536, default: 2048, group, help: 'elements of a row' },
  experts: { name: 'experts', type: 'integer', min: 1, max: 4096, default: 64, group, help: 'physical experts' },
  topK: { name: 'top-k', type: 'integer', min: 1, max: 32, default: 8, group, help: 'experts of a token' },
  wire: {
    name: 'wire',
    type: 'choice',
    choices: WIRES,
    default: 'f32',
    group,
    help: 'how rows travel in dispatch',
  },
  combineWire: {
    name: 'combine-wire',
    type: 'choice',
    choices: WIRES,
    default: 'f32',
    group,
    help: 'how rows travel in combine',
  },
  skew: {
    name: 'skew',
    type: 'number',
    min: 0,
    max: 4,
    default: 0,
    group,
    help: 'expert n is drawn in proportion to 1/n^skew',
  },
  ringShare: {
    name: 'ring-share',
    type: 'number',
    min: 0,
    max: 4,
    aboveMin: true,
    default: 0.1,
    group,
    help: 'size of the transit rings of mode ring, as a share of the data',
  },
  rounds: {
    name: 'rounds',
    type: 'integer',
    min: 1,
    max: 1000,
    default: 15,
    group,
    help: 'rounds; medians are reported',
  },
  seed: { name: 'seed', type: 'integer', min: 0, max: 0xffffffff, default: 1, group, help: 'seed of the routing' },
  kernels: {
    name: 'kernels',
    type: 'choice',
    choices: ['auto', 'native', 'reference'],
    default: 'auto',
    group,
    help: 'kernels that move rows',
  },
} as const satisfies FlagTable

export interface EpReport {
  readonly version: string
  readonly machine: { readonly processor: string; readonly cores: number; readonly node: string }
  readonly results: readonly EpRow[]
}

export function benchEpCommand(io: CliIo): Command {
  const taken = (flags: string, help: string, fallback: string): Option =>
    new Option(flags, help).default(fallback, fallback).helpGroup(`${group}:`)
  const command = new Command('ep')
    .addOption(taken('--ranks <list>', 'numbers of ranks', '4'))
    .addOption(taken('--mode <list>', 'modes', EP_MODES.join(',')))
    .addOption(taken('--device <device>', 'cpu, or cuda, cuda:0,1: a rank on each of these GPUs', 'cpu'))
    .addOption(taken('--shapes <list>', 'with cuda: tokens x hidden x experts', '4096x7168x256,4096x2048x128'))
    .addOption(
      taken('--sms <list>', 'with cuda: blocks of normal dispatch and combine, one an SM', '8,16,24,32,64,132'),
    )
    .addOption(
      taken(
        '--parts <list>',
        `with cuda: some of ${EP_CUDA_PARTS.join(', ')}`,
        EP_CUDA_PARTS.filter(p => p !== 'controls').join(','),
      ),
    )
    .addOption(
      new Option(
        '--controls',
        'with cuda: copies, and NCCL where it is installed, over the same links first',
      ).helpGroup(`${group}:`),
    )
  return addFlags(command, EP_FLAGS)
    .option('--json', 'one JSON object on stdout and nothing else')
    .summary('measure dispatch and combine')
    .description(
      'Measures dispatch and combine between worker threads that share memory, and the share of what the same threads reach by copying the same bytes.',
    )
    .addHelpText(
      'after',
      '\nExamples:\n  switchyard bench ep\n  switchyard bench ep --ranks 2,4,8 --wire fp8 --combine-wire bf16 --json',
    )
    .action(async (options: Readonly<Record<string, unknown>>) => {
      const flags = takeFlags(EP_FLAGS, options)
      const device = String(options['device'])
      if (device !== 'cpu') {
        onCuda(io, device, options, flags)
        return
      }
      const ranks = list('--ranks', String(options['ranks']), 'numbers from 1 to 64', t => {
        const n = /^\d+$/.test(t) ? Number(t) : 0
        return n >= 1 && n <= 64 ? n : undefined
      })
      const modes = list('--mode', String(options['mode']), EP_MODES.join(', '), t => EP_MODES.find(m => m === t))
      if (flags.topK > flags.experts)
        throw new ConfigError('SY_CONFIG_BAD_VALUE', {
          flag: '--top-k',
          value: flags.topK,
          expected: `at most the number of experts, ${flags.experts}`,
          suggestion: '',
        })
      const results: EpRow[] = []
      for (const n of ranks) {
        io.err(`measuring ${n} ranks\n`)
        results.push(...(await benchEp({ ...flags, dispatchWire: flags.wire, ranks: n, modes })))
      }
      const machine = {
        processor: cpus()[0]?.model.trim() ?? process.arch,
        cores: availableParallelism(),
        node: process.versions.node,
      }
      const report: EpReport = { version, machine, results }
      printReport(io, options['json'] === true, report, () => asText(report))
    })
}

/** `bench ep --device cuda`: a line as soon as a figure is known, then the table or the JSON object. */
function onCuda(
  io: CliIo,
  device: string,
  options: Readonly<Record<string, unknown>>,
  flags: { readonly rounds: number; readonly topK: number; readonly skew: number; readonly seed: number },
): void {
  const given = /^cuda(?::(\d+(?:,\d+)*))?$/.exec(device)
  if (!given)
    throw new ConfigError('SY_CONFIG_BAD_VALUE', {
      flag: '--device',
      value: JSON.stringify(device),
      expected: 'cpu, cuda, or cuda:0,1',
      suggestion: '',
    })
  const gpus = (given[1] ?? '0,1').split(',').map(Number)
  const number = (t: string) => (/^\d+$/.test(t) ? Number(t) : undefined)
  const sms = list('--sms', String(options['sms']), 'numbers of SMs', number)
  const shapes = list('--shapes', String(options['shapes']), 'tokens x hidden x experts', t => {
    const sizes = t.split('x').map(Number)
    if (sizes.length !== 3 || !sizes.every(n => Number.isInteger(n) && n > 0)) return undefined
    const [tokens, hidden, experts] = sizes as [number, number, number]
    return { tokens, hidden, experts, topK: flags.topK, skew: flags.skew, seed: flags.seed }
  })
  const parts = list('--parts', String(options['parts']), EP_CUDA_PARTS.join(', '), t =>
    EP_CUDA_PARTS.find(p => p === t),
  )
  if (options['controls'] === true) parts.unshift('controls')
  const results: EpCudaFigure[] = []
  const failures: unknown[] = []
  const failed = (part: string, error: unknown) => {
    failures.push(error)
    io.err(`error in ${part}: ${error instanceof Error ? error.message : String(error)}\n`)
  }
  const note = (text: string) => io.err(`${text}\n`)
  for (const found of benchEpCuda(shapes, { gpus, sms, parts, times: flags.rounds }, { failed, note })) {
    results.push(found)
    const rate = found.linkBytes > 0 ? `, ${found.linkGBs.toFixed(0)} GB/s` : ''
    io.err(`${found.what}; ${found.shape}; ${found.sms} SMs: ${found.us.toFixed(1)} µs${rate}\n`)
  }
  const copy = results.find(r => r.what === PEER_COPY)
  // Ranks that share a GPU copy inside it: there is nothing to compare.
  const reason = new Set(gpus).size < 2 ? 'one GPU: nothing crosses a link' : copy && voidReason(copy.linkGBs)
  const report = { version, gpus, linkGBs: LINK_GBS, ...(reason ? { void: reason } : {}), results }
  printReport(io, options['json'] === true, report, () => cudaText(results, reason))
  if (failures.length > 0) throw failures[0]
}

function cudaText(results: readonly EpCudaFigure[], reason: string | undefined): string {
  const rows = results.map(r => [
    r.what,
    r.shape,
    r.sms === 0 ? '' : String(r.sms),
    r.us > 0 ? r.us.toFixed(1) : '',
    r.linkBytes > 0 ? r.linkGBs.toFixed(0) : '',
    r.limitUs > 0 ? r.limitUs.toFixed(1) : '',
    r.limit,
    r.stored && !reason ? r.stored.us.toFixed(1) : '',
    r.stored && !reason ? r.stored.what : '',
  ])
  const head = ['what', 'shape', 'SMs', 'µs', 'link GB/s', 'limit µs', 'of', 'stored µs', 'stored figure of']
  return `${reason ? `void: ${reason}\n` : ''}${table(head, rows)}`
}

function list<T>(flag: string, text: string, expected: string, parse: (part: string) => T | undefined): T[] {
  const parts = text.split(',').map(part => parse(part.trim()))
  if (parts.every(part => part !== undefined)) return parts as T[]
  const fields = { flag, value: JSON.stringify(text.slice(0, 60)), expected: `${expected}, with commas between them` }
  throw new ConfigError('SY_CONFIG_BAD_VALUE', { ...fields, suggestion: '' })
}

const gb = (bytesPerSecond: number): string => (bytesPerSecond / 1e9).toFixed(2)
const us = (value: number): string => value.toFixed(value < 100 ? 1 : 0)

function asText({ version, machine, results }: EpReport): string {
  const first = results[0]!
  const rows = results.map(r => [
    String(r.ranks),
    r.mode === 'ring' ? `ring of ${(100 * r.ringShare).toFixed(0)}%` : r.mode.replace('_', '-'),
    String(r.tokens),
    us(r.dispatchUs),
    us(r.combineUs),
    gb(r.bytesPerSecond),
    gb(r.crossingBytesPerSecond),
    gb(r.copyBytesPerSecond),
    `${(100 * r.copyShare).toFixed(0)}%`,
    us(r.barrierUs),
  ])
  const head = ['ranks', 'mode', 'tokens', 'dispatch µs', 'combine µs', 'GB/s', 'crossing GB/s', 'copy GB/s', 'of copy']
  return `Switchyard ${version} on ${machine.processor}, ${machine.cores} cores, Node ${machine.node}, ${first.kernels} kernels
hidden ${first.hidden}, top-${first.topK} of ${first.experts}, skew ${first.skew}; ${first.dispatchWire} to the experts, ${first.combineWire} back

${table([...head, 'barrier µs'], rows)}
Times are from the first rank's begin to the last one's end. GB/s counts the wire bytes of all received rows, there and back;
"of copy" compares with the same threads copying the same bytes inside their own memory, in the same rounds.
`
}
