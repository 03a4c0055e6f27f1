// `switchyard bench engine DIR --device cuda`: decode and prompt speed of a model on a GPU as a client of the engine sees them,
// each beside the limit that its bytes or its operations set, and where a step's time goes by the GPU's own clock.

import type { EngineFlags } from '../../config/flags.js'
import { LIMITS } from '../../device/cuda/bench/bench.js'
import { elementBytes } from '../../device/ops.js'
import type { Engine } from '../../engine/index.js'
import { GREEDY } from '../../engine/request.js'
import { drawExperts } from '../../runtime/fake-routing.js'
import { CounterRandom, STREAM } from '../../runtime/random.js'
import { engineModule, startWithProgress } from '../engine.js'
import type { CliIo } from '../io.js'
import { bytes, table } from '../report.js'
import { version } from '../version.js'
import { type BenchMachine, type BenchOptions, benchMachine, roomFor } from './measure-engine.js'
import { measure } from './run.js'
import { decodeStepBytes, expectedExperts } from './step-bytes.js'
import { prefillFlop } from './step-flop.js'
import { type TracedSteps, tracedSteps } from './traced-steps.js'

/** Prompts of the prefill measurement. */
const PREFILL = { streams: 4, promptTokens: 4096, repetitions: 3 } as const
/** Decode steps of a traced run, after as many that only warm up. */
const TRACED_STEPS = 24
/** The first of them capture their graph anew, with stamps. */
const TRACED_ASIDE = 3
/** 80 bytes each. */
const TRACE_RECORDS = 1 << 17

export interface CudaDecodeRow {
  /** Of all ranks. */
  readonly batch: number
  readonly tokensPerSecond: number
  readonly stepMs: number
  /** Distinct experts of a layer that a step touches, mean over layers: counted where they are drawn, else expected of even routing. */
  readonly expertsTouched: number | null
  /** Bytes of weights and KV cache that a rank reads in a step. */
  readonly stepBytes: number
  /** tokens/s if those bytes took no longer than at the bandwidth of the limits. */
  readonly limitTokensPerSecond: number
  readonly shareOfLimit: number
  /** What a traced step showed, with a stamp after every operation; null when the streams never ran together. */
  readonly traced: (TracedSteps & { readonly launches: number | null }) | null
}

export interface CudaPrefillRow {
  readonly streams: number
  readonly promptTokens: number
  /** Median of several runs. */
  readonly tokensPerSecond: number
  readonly flop: number
  readonly limitTokensPerSecond: number
  readonly shareOfLimit: number
  /** What a step with all prompts showed, with a stamp after every operation; null when they went in several steps. */
  readonly traced: TracedSteps | null
}

export interface CudaBenchReport {
  readonly version: string
  readonly machine: BenchMachine
  readonly device: string
  readonly model: string
  readonly dtype: string
  readonly loadFormat: string
  readonly routing: string
  readonly ranks: number
  readonly contextTokens: number
  readonly outputTokens: number
  readonly seed: number
  readonly limits: typeof LIMITS
  readonly decode: readonly CudaDecodeRow[]
  readonly prefill: CudaPrefillRow | null
}

export async function benchEngineCuda(io: CliIo, flags: EngineFlags, options: BenchOptions): Promise<CudaBenchReport> {
  const { startEngine } = await engineModule()
  const { promptTokens, outputTokens, seed, batches } = options
  const roomy = {
    ...roomFor(flags, options),
    chunkedPrefillSize: Math.max(flags.chunkedPrefillSize, PREFILL.streams * PREFILL.promptTokens),
  }
  const start = (...[given, hooks]: Parameters<typeof startEngine>) =>
    startEngine(given, { ...hooks, traceRecords: TRACE_RECORDS })
  const engine = await startWithProgress(io, start, roomy)
  try {
    const now = () => performance.now()
    const decode: CudaDecodeRow[] = []
    for (const batch of batches) {
      io.err(`decoding ${batch === 1 ? '1 stream' : `${batch} streams`}\n`)
      // Graphs of this size are captured before the clock counts.
      await measure(engine, { batch, promptTokens: 16, outputTokens: 12, seed: seed + batch }, now)
      const speed = await measure(engine, { batch, promptTokens, outputTokens, seed }, now)
      const traced = await traceDecode(engine, batch, promptTokens, seed + 7 * batch)
      decode.push(decodeRow(engine, options, speed, traced))
    }
    const prefill = await measurePrefill(engine, io, seed)
    return {
      version,
      machine: benchMachine(),
      device: String(engine.info()['kernels']),
      model: engine.modelName,
      dtype: engine.plan.dtype === 'f32' ? 'float32' : 'bfloat16',
      loadFormat: flags.loadFormat,
      routing: engine.plan.fakeRouting ? 'drawn evenly' : 'as the router chooses',
      ranks: engine.plan.topology.ranks.length,
      contextTokens: promptTokens + outputTokens / 2,
      outputTokens,
      seed,
      limits: LIMITS,
      decode,
      prefill,
    }
  } finally {
    await engine.close(0)
  }
}

async function measurePrefill(engine: Engine, io: CliIo, seed: number): Promise<CudaPrefillRow | null> {
  const { streams, promptTokens, repetitions } = PREFILL
  if (promptTokens + 2 > engine.contextLength) return null
  io.err(`prompts of ${streams} x ${promptTokens} tokens\n`)
  const speeds: number[] = []
  for (let run = 0; run <= repetitions; run++) {
    const load = { batch: streams, promptTokens, outputTokens: 2, seed: seed + 1000 + run }
    const { promptTokensPerSecond } = await measure(engine, load, () => performance.now(), engine)
    if (run > 0) speeds.push(promptTokensPerSecond)
    await engine.flushCache()
  }
  const trace = engine.trace!
  trace.start()
  await measure(engine, { batch: streams, promptTokens, outputTokens: 2, seed }, () => performance.now(), engine)
  trace.stop()
  const traced = tracedSteps(trace.read(), streams * promptTokens, 0)
  const tokensPerSecond = speeds.sort((a, b) => a - b)[repetitions >> 1]!
  const flop = prefillFlop(engine.plan.programs[0]![0]!, streams, promptTokens)
  const limit = (streams * promptTokens) / (flop / (LIMITS.flopPerSecond * engine.plan.topology.ranks.length))
  return {
    streams,
    promptTokens,
    tokensPerSecond,
    flop,
    limitTokensPerSecond: limit,
    shareOfLimit: tokensPerSecond / limit,
    traced,
  }
}

/** A batch that decodes once more, recorded. */
async function traceDecode(
  engine: Engine,
  batch: number,
  promptTokens: number,
  seed: number,
): Promise<CudaDecodeRow['traced']> {
  const random = new CounterRandom(seed, STREAM.benchmark)
  const sampling = { ...GREEDY, maxTokens: 2 * TRACED_STEPS, ignoreEos: true }
  const trace = engine.trace!
  let begun = 0
  /** Of each rank, when all streams run and nothing is stamped yet. */
  let launches: readonly number[] = []
  const one = async (): Promise<void> => {
    const inputIds = Array.from({ length: promptTokens }, () => random.below(engine.vocabSize))
    let tokens = 0
    for await (const event of engine.generate({ inputIds, sampling })) {
      tokens += event.tokenIds.length
      if (tokens !== TRACED_STEPS || ++begun > 1) continue
      launches = engine.state().map(({ device }) => device?.graphLaunches ?? 0)
      trace.start()
    }
  }
  await Promise.all(Array.from({ length: batch }, one))
  trace.stop()
  const traced = tracedSteps(trace.read(), batch, TRACED_ASIDE)
  if (!traced) return null
  const { attnDp } = engine.plan.topology.ranks[traced.rank]!
  return { ...traced, launches: launches[attnDp] || null }
}

function decodeRow(
  engine: Engine,
  { promptTokens, outputTokens }: BenchOptions,
  {
    batch,
    decodeTokensPerSecond,
    decodeStepMs,
  }: { batch: number; decodeTokensPerSecond: number; decodeStepMs: number },
  traced: CudaDecodeRow['traced'],
): CudaDecodeRow {
  const { plan } = engine
  const program = plan.programs[0]![0]!
  const contextTokens = promptTokens + outputTokens / 2
  const kvColumns = program.program.buffers.reduce((sum, b) => sum + (b.kind === 'kv' ? b.columns : 0), 0)
  const kvBytesPerToken = kvColumns * elementBytes(plan.activation)
  const ownStreams = Math.ceil(batch / plan.topology.sizes.attnDp)
  const stepBytes = decodeStepBytes(program, plan.dtype, batch, contextTokens, kvBytesPerToken, ownStreams).total
  const limit = batch / (stepBytes / LIMITS.bytesPerSecond)
  return {
    batch,
    tokensPerSecond: decodeTokensPerSecond,
    stepMs: decodeStepMs,
    expertsTouched: expertsTouched(engine, batch, Math.round(contextTokens)),
    stepBytes,
    limitTokensPerSecond: limit,
    shareOfLimit: decodeTokensPerSecond / limit,
    traced,
  }
}

/** Mean over layers; null for models without routed experts. */
function expertsTouched({ plan }: Engine, batch: number, position: number): number | null {
  const routers = plan.programs[0]![0]!.program.operations.flatMap(op => (op.kind === 'router' ? [op.args.spec] : []))
  if (routers.length === 0) return null
  const touched = routers.map(({ experts, topK }, layer) => {
    if (!plan.fakeRouting) return expectedExperts(experts, topK, batch)
    const seen = new Set<number>()
    const out = new Int32Array(topK)
    for (let row = 0; row < batch; row++) {
      drawExperts(layer, row, position, experts, out)
      for (const e of out) seen.add(e)
    }
    return seen.size
  })
  return touched.reduce((a, b) => a + b, 0) / touched.length
}

export function cudaBenchText(report: CudaBenchReport): string {
  const { machine, limits } = report
  const percent = (share: number | null) => (share === null ? '' : `${(100 * share).toFixed(0)}%`)
  const decode = table(
    [
      'streams',
      'tok/s',
      'step ms',
      'limit tok/s',
      'of limit',
      'bytes a step',
      'experts',
      'launches',
      'host µs',
      'GPU idle',
      ...(report.ranks > 1 ? ['of rank'] : []),
    ],
    report.decode.map(row => [
      String(row.batch),
      row.tokensPerSecond.toFixed(0),
      row.stepMs.toFixed(3),
      row.limitTokensPerSecond.toFixed(0),
      percent(row.shareOfLimit),
      bytes(row.stepBytes),
      row.expertsTouched === null ? '' : row.expertsTouched.toFixed(1),
      row.traced ? String(row.traced.launches ?? 'no graph') : '',
      row.traced ? row.traced.hostUs.toFixed(0) : '',
      percent(row.traced?.gpuIdleShare ?? null),
      ...(report.ranks > 1 ? [row.traced ? String(row.traced.rank) : ''] : []),
    ]),
  )
  const { prefill } = report
  const prompts =
    prefill === null
      ? 'prompts not measured: the context is too short\n'
      : table(
          ['prompts', 'tok/s', 'limit tok/s', 'of limit', 'TFLOP/s'],
          [
            [
              `${prefill.streams} x ${prefill.promptTokens}`,
              prefill.tokensPerSecond.toFixed(0),
              prefill.limitTokensPerSecond.toFixed(0),
              percent(prefill.shareOfLimit),
              ((prefill.flop * prefill.tokensPerSecond) / (prefill.streams * prefill.promptTokens) / 1e12).toFixed(0),
            ],
          ],
        )
  const kinds = [
    ...report.decode.map(({ batch, traced }) => ({ what: String(batch), traced })),
    ...(prefill ? [{ what: 'prompts', traced: prefill.traced }] : []),
  ].map(({ what, traced }) => {
    if (!traced) return `${what}: never all at once, so nothing was traced`
    const parts = traced.kinds.slice(0, 8).map(k => `${k.kind} ${k.us.toFixed(0)} (${k.calls.toFixed(0)})`)
    return `${what}${report.ranks > 1 ? `, rank ${traced.rank}` : ''}: ${parts.join(', ')}`
  })
  return `Switchyard ${report.version} on ${report.device}; ${machine.processor}, ${machine.cores} cores, Node ${machine.node}
${report.model}, ${report.dtype}, weights ${report.loadFormat}, experts ${report.routing}; context ${report.contextTokens}, ${report.outputTokens} out, seed ${report.seed}
limits: ${(limits.bytesPerSecond / 1e12).toFixed(1)} TB/s, ${(limits.flopPerSecond / 1e12).toFixed(0)} TFLOP/s

${decode}
${prompts}
GPU µs of a traced step by operation (calls), a stamp after each${report.ranks > 1 ? '; of the rank with most work' : ''}:
${kinds.join('\n')}
`
}
