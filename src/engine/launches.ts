// Lends every rank its memory and makes the launches. Runs in the main thread, before any rank starts.
import { lendExpertBuffer } from '../comm/index.js'
import type { EngineFlags } from '../config/flags.js'
import type { MemoryLender, MemorySpan } from '../device/memory.js'
import type { LoadedWeights } from '../formats/weight-spec.js'
import type { IdTables } from '../program/index.js'
import type { ControlBlock } from '../runtime/control.js'
import type { DispatchRule } from '../scheduler/index.js'
import { lendTraceRing } from '../trace/index.js'
import { parseDrill } from './drill.js'
import type { RankLaunch } from './launch.js'
import type { ModelPlan } from './load-model.js'
import type { NodeDevice } from './node-device.js'
import { placementTables } from './placement-tables.js'
import { lendGroups, lendRankMemory, lendRopeTables } from './rank-memory.js'
import { weightsOfRank } from './weight-union.js'

const NO_TABLES: IdTables = { spans: {}, columns: {} }

const forcedPadding = ({ dpGather }: EngineFlags) =>
  dpGather === 'auto' ? null : dpGather === 'all_gather' ? 'MAX_LEN' : 'SUM_LEN'

function dispatchRule({ expertBuffer, topology }: ModelPlan, { deepepMode }: EngineFlags): DispatchRule | null {
  if (!expertBuffer) return null
  const slots = expertBuffer.lowLatency?.slots ?? 0
  return { mode: deepepMode, maxTokensForLowLatency: slots * topology.sizes.attnTp }
}

export function launchesOf(
  plan: ModelPlan,
  flags: EngineFlags,
  weights: LoadedWeights,
  control: ControlBlock,
  device: NodeDevice,
  lender: MemoryLender,
  cores: number,
  traceRecords = 0,
): { launches: RankLaunch[]; kvBytes: number } {
  const { topology, placement } = plan
  const drill = parseDrill(flags.failureDrill, topology.sizes.tp)
  const all = plan.programs.flat().map(p => p.program)
  const host = device.hostLender(lender)
  const groups = lendGroups(topology, all, host)
  const ropeTables = lendRopeTables(all[0]!, lender, device.write)
  const tables = Array.from({ length: topology.sizes.ep }, (_, ep) =>
    placement ? placementTables(placement, ep, lender, device.write) : NO_TABLES,
  )
  /** Buffers of each rank that schedules, by its attention-DP index. */
  const leaders: Readonly<Record<string, MemorySpan>>[] = []
  const expertBuffer = plan.expertBuffer ? lendExpertBuffer(host, plan.expertBuffer) : null
  let kvBytes = 0
  const launches = topology.ranks.map((coordinates): RankLaunch => {
    const { rank, attnDp, ep } = coordinates
    const programs = plan.programs[rank]!.map(p => p.program)
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
      weights: weightsOfRank(weights, plan.weights.names[rank]!),
      buffers: memory.buffers,
      ropeTables,
      idTables: tables[ep]!,
      limits: plan.limits,
      chunkedPrefillSize: flags.chunkedPrefillSize,
      prefillDelayPasses: flags.enablePrefillDelayer ? flags.prefillDelayerMaxDelayPasses : 0,
      scheduling: {
        prefixCache: !flags.disableRadixCache,
        conservativeness: flags.scheduleConservativeness,
        prefillDecodeInterval: flags.prefillDecodeInterval,
      },
      device: placed.device,
      overlap: plan.overlap,
      fakeRouting: plan.fakeRouting,
      configHash: plan.configHash,
      forcedPadding: forcedPadding(flags),
      expertBuffer,
      dispatchRule: dispatchRule(plan, flags),
      trace: traceRecords > 0 ? lendTraceRing(host, traceRecords) : null,
      drill,
      cores,
    }
  })
  device.loaded()
  return { launches, kvBytes }
}
