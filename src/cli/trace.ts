// `switchyard trace DIR`: runs a short generation and writes what every rank did in its steps to a file for Perfetto, with
// a summary of where the time went and who waited for whom.
import { closeSync, openSync, writeSync } from 'node:fs'
import { Command, Option } from 'commander'
import { ConfigError } from '../config/config-errors.js'
import type { FlagTable } from '../config/flag-spec.js'
import type { Engine } from '../engine/index.js'
import { GREEDY } from '../engine/request.js'
import { chromeJson, summarize, type Trace, type TraceSummary } from '../trace/index.js'
import { engineModule, startWithProgress } from './engine.js'
import { addEngineFlags, addFlags, takeEngineFlags, takeFlags } from './flag-options.js'
import type { CliIo } from './io.js'
import { addPromptOptions, promptIds, takePrompt } from './prompt-options.js'
import { bytes, printReport, table, whole } from './report.js'

/** Records of each rank's ring, 80 bytes each: some 200 steps of a model of 48 layers. */
const RECORDS = 1 << 18
const WAITS_SHOWN = 8

const TRACE_FLAGS = {
  steps: {
    name: 'steps',
    type: 'integer',
    min: 1,
    max: 10_000,
    default: 8,
    group: 'Trace',
    help: 'tokens to make, a step each; a prompt that needs several steps adds them',
  },
  requests: {
    name: 'requests',
    type: 'integer',
    min: 1,
    max: 4096,
    default: null,
    defaultHelp: 'one for each attention-DP rank',
    group: 'Trace',
    help: 'copies of the prompt that run at once, dealt out to the attention-DP ranks',
  },
  warmupSteps: {
    name: 'warmup-steps',
    type: 'integer',
    min: 0,
    max: 10_000,
    default: 8,
    group: 'Trace',
    help: 'tokens made before the recording, so that it shows warm code',
  },
} as const satisfies FlagTable

export interface TraceReport extends TraceSummary {
  readonly file: string
  readonly events: number
  readonly file_bytes: number
}

export function traceCommand(io: CliIo): Command {
  return addFlags(addPromptOptions(addEngineFlags(new Command('trace'))), TRACE_FLAGS)
    .addOption(
      new Option('--out <file>', 'file to write, for ui.perfetto.dev or chrome://tracing')
        .default('trace.json')
        .helpGroup('Trace:'),
    )
    .option('--json', 'the summary as one JSON object on stdout and nothing else')
    .summary('write a timeline of real steps')
    .description(
      'Runs a short generation and writes a timeline: for each rank its steps, operations and waits, with arrows from where something was sent to where it was taken in. Open the file at ui.perfetto.dev.',
    )
    .addHelpText(
      'after',
      `
Examples:
  switchyard trace models/demo --prompt "Once upon a time"
  switchyard trace models/demo --prompt "export function" --tp-size 2 --attn-dp-size 2 --ep-size 2 --steps 20 --out steps.json
  switchyard trace models/demo --input-ids 0,742,934 --steps 4 --json`,
    )
    .action(async (dir: string | undefined, options: Readonly<Record<string, unknown>>) => {
      const flags = takeEngineFlags('trace', dir, options)
      const prompt = takePrompt('switchyard trace', options)
      const wanted = takeFlags(TRACE_FLAGS, options)
      const file = options['out'] as string
      // Before the model loads: a file that cannot be written is found now.
      const handle = openForWriting(file)
      try {
        const { startEngine } = await engineModule()
        const start = (...[given, hooks]: Parameters<typeof startEngine>) =>
          startEngine(given, { ...hooks, traceRecords: RECORDS })
        const engine = await startWithProgress(io, start, flags)
        const traced = await record(engine, promptIds(engine, prompt), wanted)
        const about = {
          model: engine.modelName,
          kernels: String(engine.info()['kernels']),
          ...engine.plan.topology.sizes,
        }
        const written = writeTrace(handle, traced, about)
        const report: TraceReport = { file, ...written, ...summarize(traced) }
        printReport(io, options['json'] === true, report, () => text(report))
      } finally {
        closeSync(handle)
      }
    })
}

function openForWriting(file: string): number {
  try {
    return openSync(file, 'w')
  } catch (error) {
    throw new ConfigError('SY_CONFIG_BAD_VALUE', {
      flag: '--out',
      value: JSON.stringify(file),
      expected: `a file that can be written (${(error as NodeJS.ErrnoException).code})`,
      suggestion: '',
    })
  }
}

/** Runs the requests, closes the engine, and gives what was recorded. */
async function record(
  engine: Engine,
  inputIds: readonly number[],
  { steps, requests, warmupSteps }: { steps: number; requests: number | null; warmupSteps: number },
): Promise<Trace> {
  const trace = engine.trace!
  try {
    const dpRanks = engine.plan.topology.sizes.attnDp
    const run = async (maxTokens: number): Promise<void> => {
      const one = async (index: number): Promise<void> => {
        const sampling = { ...GREEDY, maxTokens, ignoreEos: true }
        for await (const _ of engine.generate({ inputIds, sampling, routedDpRank: index % dpRanks })) {
          // Only what the ranks do is of interest.
        }
      }
      await Promise.all(Array.from({ length: requests ?? dpRanks }, (_, i) => one(i)))
    }
    if (warmupSteps > 0) {
      await run(warmupSteps)
      await engine.flushCache()
    }
    await engine.startTrace()
    await run(steps)
    trace.stop()
  } finally {
    // Ranks write their last step down when they go on to the next one: at the latest now.
    await engine.close(0)
  }
  return trace.read()
}

function writeTrace(
  handle: number,
  trace: Trace,
  about: Readonly<Record<string, unknown>>,
): { events: number; file_bytes: number } {
  let [events, size, pending] = [-2, 0, '']
  const flush = (): void => {
    size += Buffer.byteLength(pending)
    writeSync(handle, pending)
    pending = ''
  }
  for (const piece of chromeJson(trace, about)) {
    events++
    pending += piece
    if (pending.length > 1 << 20) flush()
  }
  flush()
  return { events, file_bytes: size }
}

/** 12345.6 -> "12.35 ms" */
const time = (us: number): string => (us < 1000 ? `${us.toFixed(1)} µs` : `${(us / 1000).toFixed(2)} ms`)

function text(report: TraceReport): string {
  const { ranks, steps, us, rows, lost, kinds, waits } = report
  const plural = (n: number, what: string) => `${whole(n)} ${what}${n === 1 ? '' : 's'}`
  const sections = [
    `${plural(steps, 'step')} of ${plural(ranks, 'rank')} in ${time(us)}: ${plural(rows, 'row')}`,
    ...(lost > 0 ? [`the first ${plural(lost, 'record')} were written over: trace fewer steps`] : []),
    ...(report.deviceIdleShare === null
      ? []
      : [`GPU without work between steps: ${(100 * report.deviceIdleShare).toFixed(1)}% of its time`]),
    '',
    table(
      ['time of all ranks in', 'calls', 'µs', 'share'],
      kinds.map(k => [k.kind, whole(k.calls), whole(k.us), `${(100 * k.share).toFixed(1)}%`]),
    ),
    ...(waits.length === 0
      ? []
      : [
          table(
            ['who waited', 'for whom', 'in', 'times', 'µs'],
            waits
              .slice(0, WAITS_SHOWN)
              .map(w => [`rank ${w.rank}`, `rank ${w.source}`, w.for, whole(w.times), whole(w.us)]),
          ),
        ]),
    `${report.file}: ${plural(report.events, 'event')}, ${bytes(report.file_bytes)}; open it at https://ui.perfetto.dev`,
  ]
  return `${sections.join('\n')}\n`
}
