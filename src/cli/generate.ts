// `switchyard generate DIR`: one prompt, one text, in this process. Greedy unless --temperature is given.
import { Command, Option } from 'commander'
import { ConfigError } from '../config/config-errors.js'
import type { FlagTable } from '../config/flag-spec.js'
import {
  type FinishReason,
  type GenerationEngine,
  GREEDY,
  type SamplingParams,
  type Timings,
  type Usage,
} from '../engine/request.js'
import { engineModule, startWithProgress } from './engine.js'
import { addEngineFlags, addFlags, takeEngineFlags, takeFlags } from './flag-options.js'
import { type CliIo, colors } from './io.js'
import { addPromptOptions, promptIds, takePrompt } from './prompt-options.js'
import { printReport } from './report.js'

const DEFAULT_MAX_TOKENS = 128

const SAMPLING_FLAGS = {
  maxTokens: {
    name: 'max-tokens',
    type: 'integer',
    min: 1,
    max: 1 << 30,
    default: null,
    defaultHelp: `${DEFAULT_MAX_TOKENS}, or what the context has left`,
    group: 'Sampling',
    help: 'tokens to make at most',
  },
  temperature: {
    name: 'temperature',
    type: 'number',
    min: 0,
    max: 100,
    default: 0,
    group: 'Sampling',
    help: '0 takes the likeliest token each time',
  },
  topP: {
    name: 'top-p',
    type: 'number',
    min: 0,
    max: 1,
    aboveMin: true,
    default: 1,
    group: 'Sampling',
    help: 'likeliest tokens that share this much probability',
  },
  topK: {
    name: 'top-k',
    type: 'integer',
    min: 0,
    max: 1 << 30,
    default: 0,
    group: 'Sampling',
    help: 'likeliest tokens only; 0 takes all',
  },
  minP: {
    name: 'min-p',
    type: 'number',
    min: 0,
    max: 1,
    default: 0,
    group: 'Sampling',
    help: 'tokens at least this likely, relative to the likeliest',
  },
} as const satisfies FlagTable

export interface GenerateReport {
  /** null without a tokenizer. */
  readonly text: string | null
  readonly output_ids: readonly number[]
  readonly finish_reason: FinishReason
  readonly usage: Readonly<Record<string, number>>
  readonly timings: Readonly<Record<string, number>>
}

export function generateCommand(io: CliIo): Command {
  const collect = (value: string, list: readonly string[]): readonly string[] => [...list, value]
  const command = addFlags(addPromptOptions(addEngineFlags(new Command('generate'))), SAMPLING_FLAGS)
    .addOption(new Option('--seed <n>', 'seed of the sampling (default: drawn)').helpGroup('Sampling:'))
    .addOption(
      new Option('--stop <text>', 'text that ends the output; may be given several times')
        .argParser(collect)
        .default([], 'none')
        .helpGroup('Sampling:'),
    )
    .addOption(new Option('--ignore-eos', 'go on after an end-of-text token').helpGroup('Sampling:'))
    .option('--json', 'one JSON object on stdout and nothing else')
  return command
    .summary('continue a prompt')
    .description('Continues a prompt in this process and prints the text as it comes.')
    .addHelpText(
      'after',
      `
Examples:
  switchyard generate models/demo --prompt "Once upon a time"
  switchyard generate models/demo --prompt "export function" --temperature 0.8 --seed 7 --max-tokens 200
  switchyard generate models/demo --input-ids 0,742,934 --max-tokens 16 --json`,
    )
    .action(async (dir: string | undefined, options: Readonly<Record<string, unknown>>) => {
      const flags = takeEngineFlags('generate', dir, options)
      const prompt = takePrompt('switchyard generate', options)
      const sampling = samplingOf(options)
      const { startEngine } = await engineModule()
      const engine = await startWithProgress(io, startEngine, flags)
      try {
        const ids = promptIds(engine, prompt)
        const left = Math.max(1, engine.contextLength - ids.length)
        const maxTokens = sampling.maxTokens ?? Math.min(DEFAULT_MAX_TOKENS, left)
        await generate(io, engine, ids, { ...sampling, maxTokens }, options['json'] === true)
      } finally {
        await engine.close(0)
      }
    })
}

type OpenSampling = Omit<SamplingParams, 'maxTokens'> & { readonly maxTokens: number | null }

function samplingOf(options: Readonly<Record<string, unknown>>): OpenSampling {
  return {
    ...GREEDY,
    ...takeFlags(SAMPLING_FLAGS, options),
    seed: seedOf(options['seed'] as string | undefined),
    stop: options['stop'] as readonly string[],
    ignoreEos: options['ignoreEos'] === true,
  }
}

function seedOf(text: string | undefined): bigint | null {
  if (text === undefined) return null
  if (/^-?\d{1,20}$/.test(text)) return BigInt.asUintN(64, BigInt(text))
  throw new ConfigError('SY_CONFIG_BAD_VALUE', {
    flag: '--seed',
    value: JSON.stringify(text.slice(0, 40)),
    expected: 'a whole number of at most 64 bits',
    suggestion: '',
  })
}

/** Streams text to stdout, or collects it for --json. Ctrl-C ends the text early. */
export async function generate(
  io: CliIo,
  engine: GenerationEngine,
  inputIds: readonly number[],
  sampling: SamplingParams,
  json: boolean,
): Promise<void> {
  const abort = new AbortController()
  const stopListening = io.onSignal(() => abort.abort())
  const outputIds: number[] = []
  let text = ''
  try {
    for await (const event of engine.generate({ inputIds, sampling, signal: abort.signal })) {
      text += event.text
      outputIds.push(...event.tokenIds)
      if (!json) io.out(engine.tokenizer === null ? event.tokenIds.map(id => `${id} `).join('') : event.text)
      if (event.finish === null) continue
      const { reason, usage, timings } = event.finish
      if (!json) {
        io.out('\n')
        io.err(`${colors(io, io.errIsTerminal).dim(summary(reason, usage, timings))}\n`)
        continue
      }
      const report: GenerateReport = {
        text: engine.tokenizer === null ? null : text,
        output_ids: outputIds,
        finish_reason: reason,
        usage: {
          prompt_tokens: usage.promptTokens,
          completion_tokens: usage.completionTokens,
          cached_tokens: usage.cachedTokens,
          total_tokens: usage.promptTokens + usage.completionTokens,
        },
        timings: { queue_ms: timings.queueMs, first_token_ms: timings.firstTokenMs, total_ms: timings.totalMs },
      }
      printReport(io, true, report, () => '')
    }
  } finally {
    stopListening()
  }
}

function summary(reason: FinishReason, usage: Usage, timings: Timings): string {
  const decodeMs = timings.totalMs - timings.firstTokenMs
  const rate =
    usage.completionTokens > 1 && decodeMs > 0
      ? `, ${((1000 * (usage.completionTokens - 1)) / decodeMs).toFixed(1)} tokens/s`
      : ''
  return `${usage.promptTokens} + ${usage.completionTokens} tokens, first after ${timings.firstTokenMs.toFixed(0)} ms${rate}, ended by ${reason}`
}
