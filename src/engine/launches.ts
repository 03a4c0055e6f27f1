// Lends every rank its memory and makes the launches. Runs in the main thread, before any rank starts.
import { lendExpertBuffer } from '../comm/index.js'
import { layOutRegion } from '../comm/peer/index.js'
import type { EngineFlags } from '../config/flags.js'
import type { MemoryLender, MemorySpan } from '../device/memory.js'
import type { IdTables } from '../program/index.js'
import type { ControlBlock } from '../runtime/control.js'
import type { DispatchRule } from '../scheduler/index.js'
import { lendTraceRing } from '../trace/index.js'
import type { PeerGroup, RankLaunch } from './launch.js'
import type { ModelPlan } from './load-model.js'
import { placementTables } from './placement-tables.js'
import { lendGroups, lendRankMemory, lendRopeTables } from './rank-memory.js'
import { lendersOf, type RankPlace, type RankPlaces } from './rank-places.js'

const NO_TABLES: IdTables = { spans: {}, columns: {} }

const forcedPadding = ({ dpGather }: EngineFlags) =>
  dpGather === 'auto' ? null : dpGather === 'all_gather' ? 'MAX_LEN' : 'SUM_LEN'

function dispatchRule({ expertBuffer, topology }: ModelPlan, { deepepMode }: EngineFlags): DispatchRule | null {
  if (!expertBuffer) return null
  const slots = expertBuffer.lowLatency?.slots ?? 0
  return { mode: deepepMode, maxTokensForLowLatency: slots * topology.sizes.attnTp }
}

/** Made once for each memory and key. */
function once<T>(make: (key: number, place: RankPlace) => T): (key: number, place: RankPlace) => T {
  const made = new Map<MemoryLender, Map<number, T>>()
  return (key, place) => {
    const here = made.get(place.lender) ?? new Map<number, T>()
    made.set(place.lender, here)
    if (!here.has(key)) here.set(key, make(key, place))
    return here.get(key)!
  }
}

/** The exchange regions of ranks on GPUs, each in its rank's memory; null where rows travel through the machine's memory. */
function lendPeers({ expertBuffer: config }: ModelPlan, places: RankPlaces): PeerGroup | null {
  if (!config || places[0]!.device.accelerator === undefined || places.length === 1) return null
  const { bytes } = layOutRegion(config)
  const bases = places.map(({ lender }) => {
    const { buffer, byteOffset } = lender.lend(bytes, 'exchange region of expert parallelism')
    if (buffer instanceof SharedArrayBuffer) throw new TypeError('peers exchange rows in memory of GPUs')
    return buffer.address + byteOffset
  })
  const ranksOnGpu = places.map(place => places.filter(other => other.device === place.device).length)
  return { config, bases, ranksOnGpu }
}

export function launchesOf(
  plan: ModelPlan,
  flags: EngineFlags,
  places: RankPlaces,
  control: ControlBlock,
  cores: number,
  traceRecords = 0,
): { launches: RankLaunch[]; kvBytes: number } {
  const { topology, placement } = plan
  const all = plan.programs.flat().map(p => p.program)
  const shared = places[0]!.device.hostLender(places[0]!.lender)
  const groups = lendGroups(topology, all, shared)
  const ropeTables = once((_, { device, lender }) => lendRopeTables(all[0]!, lender, device.write))
  const tables = once((ep, { device, lender }) =>
    placement ? placementTables(placement, ep, lender, device.write, plan.ownExperts) : NO_TABLES,
  )
  /** Buffers of each rank that schedules, by its attention-DP index. */
  const leaders: Readonly<Record<string, MemorySpan>>[] = []
  const peers = lendPeers(plan, places)
  const expertBuffer = plan.expertBuffer && !peers ? lendExpertBuffer(shared, plan.expertBuffer) : null
  let kvBytes = 0
  const launches = topology.ranks.map((coordinates): RankLaunch => {
    const { rank, attnDp, ep } = coordinates
    const programs = plan.programs[rank]!.map(p => p.program)
    const place = places[rank]!
    const { device, lender } = place
    // Pinned for the rank's GPU, whole buffers at a time, so ranks share none.
    const host = device.hostLender(lender)
    const placed = device.forRank(programs[0]!, { lender, host }, plan)
    const memory = lendRankMemory(programs, lender, placed.inputs ?? leaders[attnDp] ?? null, plan.activation)
    leaders[attnDp] ??= memory.buffers[0]!
    kvBytes += memory.kvBytes
    return {
      sizes: topology.sizes,
      coordinates,
      control: control.buffer,
      groups: groups[rank]!,
      variants: plan.variants,
      programs,
      weights: place.weights,
      buffers: memory.buffers,
      ropeTables: ropeTables(0, place),
      idTables: tables(ep, place),
      limits: plan.limits,
      chunkedPrefillSize: flags.chunkedPrefillSize,
      prefillDelayPasses: flags.enablePrefillDelayer ? flags.prefillDelayerMaxDelayPasses : 0,
      scheduling: {
        prefixCache: !flags.disableRadixCache,
        conservativeness: flags.scheduleConservativeness,
        prefillDecodeInterval: flags.prefillDecodeInterval,
      },
      device: placed.device.kind === 'cuda' && peers ? { ...placed.device, peers } : placed.device,
      overlap: plan.overlap,
      fakeRouting: plan.fakeRouting,
      configHash: plan.configHash,
      forcedPadding: plan.ownExperts ? 'SUM_LEN' : forcedPadding(flags),
      expertBuffer,
      dispatchRule: dispatchRule(plan, flags),
      trace: traceRecords > 0 ? lendTraceRing(shared, traceRecords) : null,
      drill: plan.drill,
      cores,
    }
  })
  for (const { device } of lendersOf(places)) device.loaded()
  return { launches, kvBytes }
}
