// From files and flags to what the planner takes: counts, a cluster, the current placement. Says on the way what was
// assumed (notes), so that nobody has to guess which placement "before" is.

import { ConfigError } from '../../config/config-errors.js'
import {
  type BalancingInput,
  type Cluster,
  type Counts,
  EplbError,
  makeCluster,
  makeCounts,
  makePlacement,
  type Placement,
  physicalOf,
  stepRange,
  trivialPlacement,
} from '../../eplb/index.js'
import { type ExpertLoad, type PlacementMap, readExpertLoad, readPlacement } from '../../formats/expert-load/index.js'
import type { ClusterFlags } from './options.js'

export interface PlanInput {
  readonly load: ExpertLoad
  readonly input: BalancingInput
  readonly counts: Counts
  readonly cluster: Cluster
  readonly notes: readonly string[]
}

/** The counts of a load, or of its last steps. */
export function countsOfLoad(load: ExpertLoad, last?: number): Counts {
  const { steps, layers, logical, counts } = load
  const all = makeCounts({ steps, layers, experts: logical, data: counts })
  return last === undefined || last >= steps ? all : stepRange(all, steps - last, steps)
}

/** @throws ConfigError, EplbError and the errors of the files */
export function planInput(commandName: string, files: readonly string[], flags: ClusterFlags): PlanInput {
  const gpus = gpusOf(commandName, files, flags)
  const load = readExpertLoad(files)
  const counts = countsOfLoad(load, flags.last)
  const cluster = clusterOf(gpus, load.logical, flags)
  const notes = [...load.notes]
  const physical = physicalOf(cluster)
  const uneven = cluster.slotsPerGpu.some(n => n !== cluster.slotsPerGpu[0])
  if (uneven) {
    const next = Math.ceil(physical / gpus) * gpus - load.logical
    notes.push(
      `GPUs have different numbers of slots; SGLang needs ${physical} slots to divide over ${gpus} GPUs: use --redundant ${next} for it`,
    )
  }
  const current = commandName === 'replay' ? undefined : currentOf(flags, load, counts, cluster, notes)
  const input: BalancingInput = {
    counts,
    cluster,
    ...(flags.groups === undefined ? {} : { groups: flags.groups }),
    ...(current === undefined ? {} : { current }),
    ...(flags.lambda === undefined ? {} : { lambda: flags.lambda }),
    ...(flags.linkWeight === undefined ? {} : { linkWeight: flags.linkWeight }),
  }
  return { load, input, counts, cluster, notes }
}

function gpusOf(commandName: string, files: readonly string[], flags: ClusterFlags): number {
  if (flags.slots !== undefined && flags.gpus !== undefined && flags.slots.length !== flags.gpus) {
    throw new ConfigError('SY_CONFIG_BAD_VALUE', {
      flag: '--slots',
      value: `a list of ${flags.slots.length}`,
      expected: `one number for each of the ${flags.gpus} GPUs`,
      suggestion: '',
    })
  }
  const gpus = flags.gpus ?? flags.slots?.length
  if (gpus !== undefined) return gpus
  const example = `switchyard eplb ${commandName} ${files[0]} --gpus 8`
  throw new ConfigError('SY_CONFIG_MISSING_ARGUMENT', {
    command: `switchyard eplb ${commandName}`,
    argument: '--gpus',
    example,
  })
}

function clusterOf(gpus: number, logical: number, flags: ClusterFlags): Cluster {
  const physical =
    flags.redundant === undefined && flags.slots !== undefined ? undefined : logical + (flags.redundant ?? 0)
  const cluster = makeCluster({
    gpus,
    nodes: flags.nodes,
    ...(physical === undefined ? {} : { physical }),
    ...(flags.slots === undefined ? {} : { slotsPerGpu: flags.slots }),
    ...(flags.dead === undefined ? {} : { dead: flags.dead }),
  })
  const most = cluster.slotsPerGpu.reduce((a, b) => Math.max(a, b), 0)
  if (most > logical) {
    const what = `a GPU would have ${most} slots for ${logical} experts`
    const fix = `Give no GPU more slots than there are experts (here at most ${(gpus - 1) * logical} redundant experts)`
    throw new EplbError('SY_EPLB_CLUSTER', { what, fix })
  }
  return cluster
}

function currentOf(
  flags: ClusterFlags,
  load: ExpertLoad,
  counts: Counts,
  cluster: Cluster,
  notes: string[],
): Placement | undefined {
  // A placement in effect was made when every GPU was alive: those that are down since held experts, too.
  const whole = makeCluster({ ...cluster, dead: [] })
  if (cluster.dead.length > 0 && (flags.current !== undefined || load.placement !== null))
    notes.push(
      `before: with all GPUs alive; experts that only ${cluster.dead.join(', ')} held come from the checkpoint`,
    )
  if (flags.current === 'trivial') return trivialPlacement(counts.layers, counts.experts, whole)
  if (flags.current !== undefined) return placementOn(readPlacement(flags.current), load.logical, whole)
  const recorded = load.placement
  if (recorded === null) return undefined
  if (recorded.physical === physicalOf(cluster)) {
    notes.push('the placement in effect is the one recorded in the dump')
    return placementOn(recorded, load.logical, whole)
  }
  notes.push(
    `the dump was recorded with ${recorded.physical} slots, not ${physicalOf(cluster)}: its placement is not compared against`,
  )
  return undefined
}

/** @throws EplbError SY_EPLB_PLACEMENT when the map is of another size or model */
export function placementOn(map: PlacementMap, logical: number, cluster: Cluster): Placement {
  const rows = Array.from({ length: map.layers }, (_, l) =>
    Array.from(map.physicalToLogical.subarray(l * map.physical, (l + 1) * map.physical)),
  )
  return makePlacement(rows, logical, cluster)
}
