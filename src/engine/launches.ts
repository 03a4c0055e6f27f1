// Lends every rank its memory and makes the launches. Runs in the main thread, before any rank starts.
import { lendExpertBuffer } from '../comm/index.js'
import type { EngineFlags } from '../config/flags.js'
import type { CpuDevice } from '../device/cpu/index.js'
import type { MemoryLender, MemorySpan } from '../device/memory.js'
import type { LoadedWeights } from '../formats/weight-spec.js'
import type { IdTables } from '../program/index.js'
import type { ControlBlock } from '../runtime/control.js'
import type { DispatchRule } from '../scheduler/index.js'
import { lendTraceRing } from '../trace/index.js'
import { parseDrill } from './drill.js'
import type { RankLaunch } from './launch.js'
import type { ModelPlan } from './load-model.js'
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
  device: Pick<CpuDevice, 'kernels' | 'wasmNode'>,
  lender: MemoryLender,
  cores: number,
  traceRecords = 0,
): { launches: RankLaunch[]; kvBytes: number } {
  const { topology, placement } = plan
  const drill = parseDrill(flags.failureDrill, topology.sizes.tp)
  const all = plan.programs.flat().map(p => p.program)
  const groups = lendGroups(topology, all, lender)
  const ropeTables = lendRopeTables(all[0]!, lender)
  const tables = Array.from({ length: topology.sizes.ep }, (_, ep) =>
    placement ? placementTables(placement, ep, lender) : NO_TABLES,
  )
  /** Buffers of each rank that schedules, by its attention-DP index. */
  const leaders: Readonly<Record<string, MemorySpan>>[] = []
  const expertBuffer = plan.expertBuffer ? lendExpertBuffer(lender, plan.expertBuffer) : null
  let kvBytes = 0
  const launches = topology.ranks.map((coordinates): RankLaunch => {
    const { rank, attnDp, ep } = coordinates
    const programs = plan.programs[rank]!.map(p => p.program)
    const memory = lendRankMemory(programs, lender, leaders[attnDp] ?? null)
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
      device: { kind: 'cpu', kernels: device.kernels.kind, wasmNode: device.wasmNode },
      overlap: plan.overlap,
      configHash: plan.configHash,
      forcedPadding: forcedPadding(flags),
      expertBuffer,
      dispatchRule: dispatchRule(plan, flags),
      trace: traceRecords > 0 ? lendTraceRing(lender, traceRecords) : null,
      drill,
      cores,
    }
  })
  return { launches, kvBytes }
}
