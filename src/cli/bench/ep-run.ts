// Runs the workers of `bench ep` for one number of ranks and turns their clocks into figures. A phase lasts from the first
// rank's begin to the last rank's end; figures are medians over rounds.
import { existsSync } from 'node:fs'
import { availableParallelism } from 'node:os'
import { fileURLToPath } from 'node:url'
import { Worker } from 'node:worker_threads'
import {
  type ExpertBufferConfig,
  expertBufferBytes,
  lendExchange,
  lendExpertBuffer,
  ringSources,
  type WireDtype,
  wireFormat,
} from '../../comm/index.js'
import { createCpuDevice } from '../../device/cpu/index.js'
import { f32View, i32View, type MemoryLender } from '../../device/memory.js'
import { EngineError } from '../../engine/errors.js'
import { ControlBlock } from '../../runtime/control.js'
import { CounterRandom, STREAM } from '../../runtime/random.js'
import { type EpLaunch, type EpMeasured, type EpWork, PHASES, type Phase } from './ep-launch.js'
import { drawRoutes, type EpRoutes, type EpShape, expertsOfMember } from './ep-workload.js'

export const EP_MODES = ['normal', 'ring', 'low_latency'] as const
export type EpMode = (typeof EP_MODES)[number]

export interface EpBenchOptions extends EpShape {
  readonly modes: readonly EpMode[]
  readonly lowLatencyTokens: number
  readonly dispatchWire: WireDtype
  readonly combineWire: WireDtype
  /** Share of the data that the rings of a rank hold. */
  readonly ringShare: number
  readonly rounds: number
  readonly kernels: 'auto' | 'native' | 'reference'
}

export interface EpRow {
  readonly ranks: number
  readonly mode: EpMode
  readonly tokens: number
  readonly hidden: number
  readonly experts: number
  readonly topK: number
  readonly skew: number
  readonly dispatchWire: WireDtype
  readonly combineWire: WireDtype
  /** Bytes of all transit rings over bytes of the data; 1 without rings. */
  readonly ringShare: number
  readonly rowsReceived: number
  readonly rowsCrossing: number
  readonly dispatchUs: number
  readonly combineUs: number
  readonly barrierUs: number
  /** Wire bytes of dispatch and combine per second of both: of all rows, and of rows that change the rank. */
  readonly bytesPerSecond: number
  readonly crossingBytesPerSecond: number
  /** The same ranks copying the same bytes, in the same run. */
  readonly copyBytesPerSecond: number
  readonly copyShare: number
  readonly bufferBytes: number
  readonly ringStalls: number
  readonly kernels: string
}

interface Prepared {
  readonly mode: EpMode
  readonly routes: EpRoutes
  readonly config: ExpertBufferConfig
  readonly works: readonly EpWork[]
}

function configOf(mode: EpMode, o: EpBenchOptions, routes: EpRoutes): ExpertBufferConfig {
  const { dispatchWire, combineWire } = o
  const common = { hidden: o.hidden, topK: o.topK, expertsOfMember: expertsOfMember(o.experts, o.ranks) }
  if (mode === 'low_latency')
    return { ...common, lowLatency: { slots: o.lowLatencyTokens, dispatchWire, combineWire, reduce: 'sender' } }
  const maxReceived = Math.max(1, ...routes.received)
  const direct = { maxTokens: o.tokens, maxReceived, dispatchWire, combineWire, transit: 'direct' as const }
  if (mode === 'normal') return { ...common, normal: direct }
  const perLane = Math.max(6, Math.floor((maxReceived * o.ringShare) / ringSources(direct, o.ranks)))
  const transit = { channels: 1, chunkTokens: Math.max(1, Math.floor(perLane / 2)), ringTokens: perLane }
  return { ...common, normal: { ...direct, transit } }
}

function prepare(mode: EpMode, o: EpBenchOptions, lender: MemoryLender): Prepared {
  const tokens = mode === 'low_latency' ? o.lowLatencyTokens : o.tokens
  const routes = drawRoutes({ ...o, tokens })
  const config = configOf(mode, o, routes)
  const buffer = lendExpertBuffer(lender, config)
  const bytes = (dtype: WireDtype, rank: number) => routes.received[rank]! * wireFormat(dtype, o.hidden).rowBytes
  const works = routes.ids.map((ids, rank): EpWork => {
    const idSpan = lender.lend(ids.byteLength, 'ids')
    i32View(idSpan).set(ids)
    const weights = lender.lend(ids.byteLength, 'weights')
    f32View(weights).fill(1)
    return {
      name: mode,
      mode: mode === 'low_latency' ? 'lowLatency' : 'normal',
      buffer,
      tokens,
      times: mode === 'low_latency' ? 20 : 1,
      copyBytes: [bytes(o.dispatchWire, rank), bytes(o.combineWire, rank)],
      ids: idSpan,
      weights,
    }
  })
  return { mode, routes, config, works }
}

function workerFile(): URL {
  const url = import.meta.url.endsWith('.ts')
    ? new URL('../../../dist/cli/bench/ep-worker.js', import.meta.url)
    : new URL('./ep-worker.js', import.meta.url)
  if (!existsSync(fileURLToPath(url))) throw new EngineError('SY_ENGINE_NOT_BUILT', { file: fileURLToPath(url) })
  return url
}

/** Starts one worker a rank and waits for all; ends the others when one fails. */
async function runWorkers(launches: readonly EpLaunch[], control: ControlBlock): Promise<EpMeasured[]> {
  const url = workerFile()
  return Promise.all(
    launches.map(
      launch =>
        new Promise<EpMeasured>((resolve, reject) => {
          const worker = new Worker(url, { workerData: launch, name: `bench ep rank ${launch.rank}` })
          worker.on('message', resolve)
          worker.on('error', error => {
            control.abort()
            reject(error)
          })
        }),
    ),
  )
}

/** Measures one number of ranks in all modes asked for, in the same workers. */
export async function benchEp(o: EpBenchOptions): Promise<EpRow[]> {
  const lender = createCpuDevice({ kernels: o.kernels }).createLender()
  const prepared = o.modes.map(mode => prepare(mode, o, lender))
  const control = ControlBlock.create(o.ranks)
  const ranks = Array.from({ length: o.ranks }, (_, r) => r)
  const group = { name: 'bench', index: 0, ranks, memory: lendExchange(lender, 'bench', o.ranks, 64) }
  const tokens = Math.max(...prepared.map(p => p.works[0]!.tokens))
  const launches = ranks.map((rank): EpLaunch => {
    const works = prepared.map(p => p.works[rank]!)
    const copyBytes = Math.max(64, ...works.flatMap(w => w.copyBytes))
    const x = lender.lend(tokens * o.hidden * 4, 'tokens')
    fill(f32View(x), o.seed + rank)
    const copyFrom = lender.lend(copyBytes, 'copy from')
    fill(f32View(copyFrom), o.seed)
    return {
      rank,
      ranks: o.ranks,
      cores: availableParallelism(),
      rounds: o.rounds,
      hidden: o.hidden,
      topK: o.topK,
      kernels: o.kernels,
      control: control.buffer,
      group,
      works,
      x,
      out: lender.lend(tokens * o.hidden * 4, 'combined'),
      copyFrom,
      copyTo: lender.lend(copyBytes, 'copy to'),
    }
  })
  const measured = await runWorkers(launches, control)
  return prepared.map((p, i) => summarise(p, i, o, measured))
}

/** Values in [-1, 1). */
function fill(to: Float32Array, seed: number): void {
  const random = new CounterRandom(seed, STREAM.benchmark)
  const some = Float32Array.from({ length: 4099 }, () => random.unit() * 2 - 1)
  for (let i = 0; i < to.length; i += some.length) to.set(some.subarray(0, Math.min(some.length, to.length - i)), i)
}

export const median = (values: readonly number[]): number => {
  const sorted = [...values].sort((a, b) => a - b)
  const middle = sorted.length >> 1
  return sorted.length % 2 === 1 ? sorted[middle]! : (sorted[middle - 1]! + sorted[middle]!) / 2
}

function summarise(
  { mode, routes, config, works }: Prepared,
  index: number,
  o: EpBenchOptions,
  all: readonly EpMeasured[],
): EpRow {
  const lasted = (phase: Phase): number[] => {
    const ofRank = all.map(m => m.spans[index]![PHASES.indexOf(phase)]!)
    return ofRank[0]!.map((_, i) => Math.max(...ofRank.map(s => s[i]![1])) - Math.min(...ofRank.map(s => s[i]![0])))
  }
  const [dispatch, combine] = [lasted('dispatch'), lasted('combine')]
  const both = median(dispatch.map((ms, i) => ms + combine[i]!)) / 1000
  const copy = Math.min(median(lasted('copy streaming')), median(lasted('copy cached'))) / 1000
  const rowBytes = wireFormat(o.dispatchWire, o.hidden).rowBytes + wireFormat(o.combineWire, o.hidden).rowBytes
  const normal = config.normal
  const slots = normal && normal.transit !== 'direct' ? normal.transit.ringTokens * ringSources(normal, o.ranks) : 0
  return {
    ranks: o.ranks,
    mode,
    tokens: works[0]!.tokens,
    hidden: o.hidden,
    experts: o.experts,
    topK: o.topK,
    skew: o.skew,
    dispatchWire: o.dispatchWire,
    combineWire: o.combineWire,
    ringShare: slots === 0 ? 1 : (slots * o.ranks) / routes.rows,
    rowsReceived: routes.rows,
    rowsCrossing: routes.crossing,
    dispatchUs: median(dispatch) * 1000,
    combineUs: median(combine) * 1000,
    barrierUs: median(lasted('barrier')) * 1000,
    bytesPerSecond: (routes.rows * rowBytes) / both,
    crossingBytesPerSecond: (routes.crossing * rowBytes) / both,
    copyBytesPerSecond: (routes.rows * rowBytes) / copy,
    copyShare: copy / both,
    bufferBytes: expertBufferBytes(config, 0).reduce((sum, part) => sum + part.bytes, 0),
    ringStalls: all.reduce((sum, m) => sum + m.ringStalls, 0),
    kernels: all[0]!.kernels,
  }
}
