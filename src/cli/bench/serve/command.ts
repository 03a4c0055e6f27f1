// `switchyard bench serve`: load on any OpenAI endpoint, measured as clients see it, in the words of vLLM's bench serve.
import { setMaxListeners } from 'node:events'
import { writeFileSync } from 'node:fs'
import { availableParallelism, cpus } from 'node:os'
import { Command, Option } from 'commander'
import { addFlags, takeFlags } from '../../flag-options.js'
import type { CliIo } from '../../io.js'
import { printReport } from '../../report.js'
import { version } from '../../version.js'
import { BenchClient, type Sample, type Target } from './client.js'
import { type BenchPrompt, makePrompts } from './datasets.js'
import { BenchError } from './errors.js'
import {
  BENCH_SERVE_FLAGS,
  type BenchServeFlags,
  parseGoals,
  parseMetrics,
  parsePercentiles,
  parseRates,
} from './flags.js'
import { LiveLine } from './live-line.js'
import { runLoad } from './load.js'
import { htmlReport, type ServeReport } from './report.js'
import { block, type Goals, type Metric, type RunResult, resultOf } from './result.js'

export function benchServeCommand(io: CliIo): Command {
  return addFlags(new Command('serve'), BENCH_SERVE_FLAGS)
    .addOption(
      new Option('--goodput <goals...>', 'count requests that keep goals in ms: ttft:200 tpot:50').helpGroup('Report:'),
    )
    .option('--json', 'one JSON object on stdout and nothing else')
    .summary('put load on an OpenAI server and measure it')
    .description('Puts load on any OpenAI endpoint and measures throughput and latencies, as vLLM’s bench serve does.')
    .addHelpText(
      'after',
      `
Examples:
  switchyard bench serve --base-url http://127.0.0.1:30000 --num-prompts 100 --random-input-len 128
  switchyard bench serve --dataset-name prefix_repetition --sweep 1,2,4,8,inf --html sweep.html
  switchyard bench serve --request-rate 4 --goodput ttft:200 tpot:50
  switchyard bench serve --null --max-concurrency 500`,
    )
    .action(async (options: Readonly<Record<string, unknown>>) => {
      // Commander reads --no-stream as stream: false.
      const given = { ...options, noStream: options['stream'] === false ? true : options['noStream'] }
      const flags = takeFlags(BENCH_SERVE_FLAGS, given, io.env)
      const shown = parseMetrics(flags.percentileMetrics)
      const report = await benchServe(io, flags, parseGoals((options['goodput'] as string[] | undefined) ?? []))
      if (flags.saveResult !== null) writeFileSync(flags.saveResult, `${JSON.stringify(report, null, 2)}\n`)
      if (flags.html !== null) writeFileSync(flags.html, htmlReport(report))
      printReport(io, options['json'] === true, report, () => asText(report, shown))
    })
}

const asText = (report: ServeReport, shown: readonly Metric[]): string =>
  report.runs.map(run => block(run, shown)).join('\n')

/** @throws BenchError, ConfigError */
export async function benchServe(io: CliIo, flags: BenchServeFlags, goals: Goals): Promise<ServeReport> {
  const rates = parseRates(flags.sweep ?? flags.requestRate, flags.sweep === null ? '--request-rate' : '--sweep')
  const percentiles = parsePercentiles(flags.metricPercentiles)
  await using nothing = flags.null ? await (await import('./null-server.js')).startNullServer() : null
  const baseUrl = (nothing?.url ?? flags.baseUrl).replace(/\/+$/, '').replace(/\/v1$/, '')
  const facts = await askServer(baseUrl, flags.apiKey)
  const target: Target = {
    baseUrl,
    endpoint: flags.endpoint ?? (flags.backend === 'openai' ? '/v1/completions' : '/v1/chat/completions'),
    backend: flags.backend,
    model: flags.model ?? facts.model,
    apiKey: flags.apiKey,
    ignoreEos: flags.ignoreEos || flags.datasetName === 'random',
    temperature: flags.temperature,
    stream: !flags.noStream,
    timeoutMs: 1000 * flags.timeout,
  }
  const prompts = makePrompts(flags, flags.backend === 'openai' ? facts.vocabSize : null)
  const now = () => performance.now()
  const client = new BenchClient(target, now)
  const stop = new AbortController()
  // One listener a running request.
  setMaxListeners(0, stop.signal)
  const unlisten = io.onSignal(() => stop.abort())
  try {
    const warmup = makePrompts({ ...flags, numPrompts: flags.numWarmups, seed: flags.seed + 1 }, facts.vocabSize)
    await Promise.all(warmup.map(prompt => client.run(prompt, () => {}, stop.signal)))
    const runs: RunResult[] = []
    for (const requestRate of rates) {
      if (stop.signal.aborted) break
      if (rates.length > 1) io.err(`request rate ${Number.isFinite(requestRate) ? requestRate : 'inf'}\n`)
      const load = { requestRate, maxConcurrency: flags.maxConcurrency, seed: flags.seed }
      const begin = now()
      const samples = await oneRun(io, client, prompts, load, stop.signal)
      const durationMs = Math.max(...samples.map(s => s.ended), begin) - begin
      const result = resultOf(samples, { ...load, percentiles, goals, durationMs })
      if (result.completed === 0) {
        const reason = Object.keys(result.errors)[0] ?? 'nothing was sent'
        throw new BenchError('SY_BENCH_ALL_FAILED', { count: samples.length, reason })
      }
      for (const [error, count] of Object.entries(result.errors)) io.err(`${count} failed: ${error}\n`)
      runs.push(result)
    }
    return {
      version,
      date: new Date().toISOString(),
      machine: {
        processor: cpus()[0]?.model.trim() ?? process.arch,
        cores: availableParallelism(),
        node: process.versions.node,
      },
      baseUrl,
      backend: flags.backend,
      model: target.model,
      dataset: flags.datasetName,
      numPrompts: flags.numPrompts,
      seed: flags.seed,
      runs,
    }
  } finally {
    unlisten()
    client.close()
  }
}

async function oneRun(
  io: CliIo,
  client: BenchClient,
  prompts: readonly BenchPrompt[],
  load: Parameters<typeof runLoad>[1],
  signal: AbortSignal,
): Promise<readonly Sample[]> {
  using line = new LiveLine(io, prompts.length)
  const send = async (prompt: BenchPrompt): Promise<Sample> => {
    line.begin()
    const sample = await client.run(prompt, count => line.tokens(count), signal)
    line.end(sample.error !== null)
    return sample
  }
  return await runLoad(prompts, load, send, signal)
}

/** The model that is served, and how large its vocabulary is where the server says so (SGLang's /get_model_info). */
async function askServer(
  baseUrl: string,
  apiKey: string | null,
): Promise<{ readonly model: string; readonly vocabSize: number | null }> {
  const headers: Record<string, string> = apiKey === null ? {} : { authorization: `Bearer ${apiKey}` }
  const get = async (path: string): Promise<Record<string, unknown>> => {
    const response = await fetch(baseUrl + path, { headers, signal: AbortSignal.timeout(10_000) })
    if (!response.ok) throw new Error(`${path} answers ${response.status}`)
    return (await response.json()) as Record<string, unknown>
  }
  try {
    const models = (await get('/v1/models'))['data'] as readonly { readonly id: string }[]
    const info = await get('/get_model_info').catch((): Record<string, unknown> => ({}))
    const vocabSize = info['vocab_size']
    return { model: models[0]!.id, vocabSize: typeof vocabSize === 'number' ? vocabSize : null }
  } catch (error) {
    const { cause, message } = error as Error & { cause?: { code?: string } }
    throw new BenchError('SY_BENCH_NO_SERVER', { url: baseUrl, reason: cause?.code ?? message })
  }
}
