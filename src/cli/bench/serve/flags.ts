// Flags of `bench serve`, with vLLM's names, and the reading of those that are lists.
import { ConfigError } from '../../../config/config-errors.js'
import type { FlagTable, FlagValues } from '../../../config/flag-spec.js'
import { type Goals, METRICS, type Metric } from './result.js'

const length = (name: string, fallback: number, help: string, min = 1) =>
  ({ name, type: 'integer', min, max: 1 << 24, default: fallback, group: 'Dataset', help }) as const

export const BENCH_SERVE_FLAGS = {
  baseUrl: {
    name: 'base-url',
    type: 'string',
    default: 'http://127.0.0.1:30000',
    group: 'Server',
    help: 'server to measure',
  },
  backend: {
    name: 'backend',
    type: 'choice',
    choices: ['openai', 'openai-chat'],
    default: 'openai',
    group: 'Server',
    help: 'completions or chat',
  },
  endpoint: {
    name: 'endpoint',
    type: 'string',
    default: null,
    defaultHelp: '/v1/completions or /v1/chat/completions',
    group: 'Server',
    help: 'path of the API',
  },
  model: {
    name: 'model',
    type: 'string',
    default: null,
    defaultHelp: 'the first one that the server lists',
    group: 'Server',
    help: 'model to ask for',
  },
  apiKey: {
    name: 'api-key',
    type: 'string',
    default: null,
    defaultHelp: 'none',
    env: 'OPENAI_API_KEY',
    group: 'Server',
    help: 'key to send',
  },
  null: {
    name: 'null',
    type: 'boolean',
    default: false,
    group: 'Server',
    help: 'measure our own server over an engine that computes nothing, in this process',
  },
  datasetName: {
    name: 'dataset-name',
    type: 'choice',
    choices: ['random', 'prefix_repetition', 'custom'],
    default: 'random',
    group: 'Dataset',
    help: 'what to ask',
  },
  datasetPath: {
    name: 'dataset-path',
    type: 'string',
    default: null,
    defaultHelp: 'none',
    group: 'Dataset',
    help: 'JSON lines {"prompt": "…", "output_tokens": 64} for custom',
  },
  numPrompts: length('num-prompts', 1000, 'requests to send'),
  seed: { ...length('seed', 0, 'seed of prompts and arrivals', 0), max: 0xfffffffe },
  randomInputLen: length('random-input-len', 1024, 'tokens of a random prompt'),
  randomOutputLen: length('random-output-len', 128, 'tokens to make for a random prompt'),
  randomRangeRatio: {
    name: 'random-range-ratio',
    type: 'number',
    min: 0,
    max: 0.999,
    default: 0,
    group: 'Dataset',
    help: 'lengths are drawn from length x (1 - ratio) to length x (1 + ratio)',
  },
  randomPrefixLen: length('random-prefix-len', 0, 'tokens that all random prompts begin with', 0),
  prefixRepetitionPrefixLen: length('prefix-repetition-prefix-len', 256, 'tokens of a shared prefix'),
  prefixRepetitionSuffixLen: length('prefix-repetition-suffix-len', 256, 'tokens after the prefix'),
  prefixRepetitionNumPrefixes: length('prefix-repetition-num-prefixes', 10, 'number of prefixes'),
  prefixRepetitionOutputLen: length('prefix-repetition-output-len', 128, 'tokens to make'),
  customOutputLen: length('custom-output-len', 256, 'tokens to make where a line names no number'),
  requestRate: {
    name: 'request-rate',
    type: 'string',
    default: 'inf',
    group: 'Load',
    help: 'requests a second, arriving as a Poisson process; inf sends all at once',
  },
  maxConcurrency: {
    name: 'max-concurrency',
    type: 'integer',
    min: 1,
    max: 1 << 20,
    default: null,
    defaultHelp: 'no limit',
    group: 'Load',
    help: 'requests that run at one time',
  },
  sweep: {
    name: 'sweep',
    type: 'string',
    default: null,
    defaultHelp: 'one run',
    group: 'Load',
    help: 'request rates to run one after the other: 1,2,4,inf',
  },
  numWarmups: { ...length('num-warmups', 0, 'requests to send first, which are not counted', 0), group: 'Load' },
  ignoreEos: {
    name: 'ignore-eos',
    type: 'boolean',
    default: false,
    group: 'Load',
    help: 'ask for outputs of full length (random prompts always do)',
  },
  temperature: {
    name: 'temperature',
    type: 'number',
    min: 0,
    max: 100,
    default: 0,
    group: 'Load',
    help: 'of sampling',
  },
  noStream: {
    name: 'no-stream',
    type: 'boolean',
    default: false,
    group: 'Load',
    help: 'ask for whole answers: for short requests',
  },
  timeout: {
    name: 'timeout',
    type: 'number',
    min: 0,
    max: 86_400,
    aboveMin: true,
    default: 600,
    group: 'Load',
    help: 'seconds after which a request counts as failed',
  },
  percentileMetrics: {
    name: 'percentile-metrics',
    type: 'string',
    default: 'ttft,tpot,itl',
    group: 'Report',
    help: 'latencies to print: ttft, tpot, itl, e2el',
  },
  metricPercentiles: {
    name: 'metric-percentiles',
    type: 'string',
    default: '99',
    group: 'Report',
    help: 'percentiles to report: 50,95,99',
  },
  saveResult: {
    name: 'save-result',
    type: 'string',
    default: null,
    defaultHelp: 'none',
    group: 'Report',
    help: 'JSON file to write',
  },
  html: {
    name: 'html',
    type: 'string',
    default: null,
    defaultHelp: 'none',
    group: 'Report',
    help: 'HTML page to write, with charts',
  },
} as const satisfies FlagTable

export type BenchServeFlags = FlagValues<typeof BENCH_SERVE_FLAGS>

const bad = (flag: string, value: string, expected: string): ConfigError =>
  new ConfigError('SY_CONFIG_BAD_VALUE', { flag, value: JSON.stringify(value.slice(0, 60)), expected, suggestion: '' })

/** "1,2,inf" → rates. @throws ConfigError */
export function parseRates(text: string, flag: string): readonly number[] {
  return text.split(',').map(part => {
    const rate = part.trim() === 'inf' ? Number.POSITIVE_INFINITY : Number(part)
    if (part.trim() === '' || !(rate > 0)) throw bad(flag, text, 'requests a second above 0, or inf')
    return rate
  })
}

/** @throws ConfigError */
export function parsePercentiles(text: string): readonly number[] {
  const list = text.split(',').map(Number)
  if (list.every(p => p > 0 && p <= 100)) return list
  throw bad('--metric-percentiles', text, 'numbers above 0, at most 100, with commas between them')
}

/** @throws ConfigError */
export function parseMetrics(text: string): readonly Metric[] {
  const list = text.split(',').map(part => part.trim())
  const unknown = list.find(name => !METRICS.includes(name as Metric))
  if (unknown !== undefined) throw bad('--percentile-metrics', text, `a list of ${METRICS.join(', ')}`)
  return list as Metric[]
}

/** ["ttft:200", "itl:50"] → goals in milliseconds. @throws ConfigError */
export function parseGoals(items: readonly string[]): Goals {
  const goals: Partial<Record<Metric, number>> = {}
  for (const item of items) {
    const found = /^(ttft|tpot|itl|e2el):(\d+(?:\.\d+)?)$/.exec(item)
    if (found === null) throw bad('--goodput', item, 'a metric and milliseconds, such as ttft:200 or tpot:50')
    goals[found[1] as Metric] = Number(found[2])
  }
  return goals
}
