// Lends every rank its memory and makes the launches. Runs in the main thread, before any rank starts.
import type { EngineFlags } from '../config/flags.js'
import type { CpuDevice } from '../device/cpu/index.js'
import type { MemoryLender, MemorySpan } from '../device/memory.js'
import type { LoadedWeights } from '../formats/weight-spec.js'
import type { IdTables } from '../program/index.js'
import type { ControlBlock } from '../runtime/control.js'
import { parseDrill } from './drill.js'
import type { RankLaunch } from './launch.js'
import type { ModelPlan, RankPrograms } from './load-model.js'
import { placementTables } from './placement-tables.js'
import { type ByPadding, lendGroups, lendRankMemory, lendRopeTables } from './rank-memory.js'
import { weightsOfRank } from './weight-union.js'

const programsOf = (both: RankPrograms) => ({ MAX_LEN: both.MAX_LEN.program, SUM_LEN: both.SUM_LEN.program })

const NO_TABLES: IdTables = { spans: {}, columns: {} }

const forcedPadding = ({ dpGather }: EngineFlags) =>
  dpGather === 'auto' ? null : dpGather === 'all_gather' ? 'MAX_LEN' : 'SUM_LEN'

export function launchesOf(
  plan: ModelPlan,
  flags: EngineFlags,
  weights: LoadedWeights,
  control: ControlBlock,
  device: Pick<CpuDevice, 'kernels' | 'wasmNode'>,
  lender: MemoryLender,
  cores: number,
): { launches: RankLaunch[]; kvBytes: number } {
  const { topology, placement } = plan
  const drill = parseDrill(flags.failureDrill, topology.sizes.tp)
  const all = plan.programs.flatMap(p => Object.values(programsOf(p)))
  const groups = lendGroups(topology, all, lender)
  const ropeTables = lendRopeTables(all[0]!, lender)
  const tables = Array.from({ length: topology.sizes.ep }, (_, ep) =>
    placement ? placementTables(placement, ep, lender) : NO_TABLES,
  )
  /** Buffers of each rank that schedules, by its attention-DP index. */
  const leaders: ByPadding<Readonly<Record<string, MemorySpan>>>[] = []
  let kvBytes = 0
  const launches = topology.ranks.map((coordinates): RankLaunch => {
    const { rank, attnDp, ep } = coordinates
    const programs = programsOf(plan.programs[rank]!)
    const memory = lendRankMemory(programs, lender, leaders[attnDp]?.MAX_LEN ?? null)
    leaders[attnDp] ??= memory.buffers
    kvBytes += memory.kvBytes
    return {
      sizes: topology.sizes,
      coordinates,
      control: control.buffer,
      groups: groups[rank]!,
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
      kernels: device.kernels.kind,
      wasmNode: device.wasmNode,
      configHash: plan.configHash,
      forcedPadding: forcedPadding(flags),
      drill,
      cores,
    }
  })
  return { launches, kvBytes }
}
