// What the public algorithms demand of sizes, and what a user can change when they refuse. Each check names the sizes that
// would work. Not here: `switchyard`, which demands nothing but a slot for every expert.
import { nodesIn, physicalOf } from '../cluster.js'
import { EplbError } from '../errors.js'
import type { AlgorithmName, BalancingInput } from '../types.js'

export interface EvenSizes {
  readonly layers: number
  readonly logical: number
  readonly physical: number
  readonly gpus: number
  readonly slotsPerGpu: number
  readonly nodes: number
  readonly groups: number
}

/** Sizes of a cluster whose live GPUs all have the same number of slots. */
export function evenSizes(input: BalancingInput, algorithm: AlgorithmName, servesDead: boolean): EvenSizes {
  const { counts, cluster, groups = 1 } = input
  const physical = physicalOf(cluster)
  const { gpus } = cluster
  if (!Number.isSafeInteger(groups) || groups < 1)
    throw new EplbError('SY_EPLB_OPTION', { option: 'groups', value: groups, expected: 'a whole number of at least 1' })
  const refuse = (what: string, fix: string) => new EplbError('SY_EPLB_SIZES', { algorithm, what, fix })
  if (cluster.slotsPerGpu.some(n => n !== cluster.slotsPerGpu[0])) {
    const what =
      physical % gpus === 0
        ? 'GPUs have different numbers of slots'
        : `${physical} physical experts do not divide over ${gpus} GPUs`
    throw refuse(what, physical % gpus === 0 ? 'Give every GPU the same slots' : divideHint(physical, gpus))
  }
  if (cluster.dead.length > 0 && !servesDead)
    throw refuse(`GPUs ${cluster.dead.join(', ')} are dead`, 'Use elasticity_aware')
  const slotsPerGpu = physical / gpus
  const live = slotsPerGpu * (gpus - cluster.dead.length)
  if (live < counts.experts)
    throw new EplbError('SY_EPLB_TOO_FEW_SLOTS', {
      slots: live,
      experts: counts.experts,
      missing: counts.experts - live,
    })
  return {
    layers: counts.layers,
    logical: counts.experts,
    physical,
    gpus,
    slotsPerGpu,
    nodes: nodesIn(cluster),
    groups,
  }
}

/** The further demands of hierarchical plans: groups over nodes, equal nodes, and whole shares of experts and slots. */
export function checkHierarchical(sizes: EvenSizes, input: BalancingInput, algorithm: AlgorithmName): void {
  const { logical, gpus, nodes, groups } = sizes
  const refuse = (what: string, fix: string) => new EplbError('SY_EPLB_SIZES', { algorithm, what, fix })
  if (logical % groups !== 0)
    throw refuse(
      `${logical} experts do not divide into ${groups} groups`,
      `Use ${divisors(logical, groups).join(' or ')} groups`,
    )
  if (groups % nodes !== 0)
    throw refuse(
      `${groups} groups do not divide over ${nodes} nodes`,
      `Use ${divisors(groups, nodes).join(' or ')} nodes, or the flat variant`,
    )
  const perNode = gpus / nodes
  const size = (node: number) => input.cluster.nodeOfGpu.filter(n => n === node).length
  for (let node = 0; node < nodes; node++)
    if (size(node) !== perNode)
      throw refuse(`node ${node} has ${size(node)} GPUs, not ${perNode}`, 'Use nodes of equal size')
}

/** "Use 36 or 48 GPUs, or 32 redundant experts more", for what does not divide over `parts`. */
function divideHint(physical: number, parts: number): string {
  const more = Math.ceil(physical / parts) * parts - physical
  return `Use ${divisors(physical, parts).join(' or ')} GPUs, or ${more} redundant experts more`
}

/** The divisors of n nearest to `near`: the greatest below it and the least above it, where they exist. */
function divisors(n: number, near: number): number[] {
  let below = 0
  let above = 0
  for (let d = 1; d <= n; d++) {
    if (n % d !== 0) continue
    if (d <= near) below = d
    else if (above === 0) above = d
  }
  return [below, above].filter(d => d > 0)
}
