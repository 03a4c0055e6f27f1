// GPUs, their nodes and their slots. Slots are numbered GPU by GPU, so a GPU's slots are one range; nodes are runs of
// consecutive GPUs. Not here: attention layouts, or anything about tokens.
import { EplbError } from './errors.js'
import type { Cluster } from './types.js'

export interface ClusterOptions {
  readonly gpus: number
  /** Nodes of equal size; 1 when absent. Ignored when `nodeOfGpu` is given. */
  readonly nodes?: number
  readonly nodeOfGpu?: readonly number[]
  /** All slots, dead GPUs' included; spread evenly, the first GPUs one more where it does not divide. */
  readonly physical?: number
  /** Slots of each GPU, instead of `physical`. */
  readonly slotsPerGpu?: readonly number[]
  readonly dead?: readonly number[]
}

/** Far beyond any deployment; planning time grows faster than the cluster. */
const MOST_GPUS = 2048
const MOST_SLOTS = 8192

const isCount = (n: unknown, least: number): n is number =>
  typeof n === 'number' && Number.isSafeInteger(n) && n >= least
const bad = (what: string, fix: string) => new EplbError('SY_EPLB_CLUSTER', { what, fix })

/**
 * A checked cluster.
 * @throws EplbError SY_EPLB_CLUSTER when sizes do not fit each other.
 */
export function makeCluster(options: ClusterOptions): Cluster {
  const { gpus } = options
  if (!isCount(gpus, 1) || gpus > MOST_GPUS) throw bad(`${String(gpus)} GPUs`, `Give between 1 and ${MOST_GPUS} GPUs`)
  const slotsPerGpu = slotsOf(options)
  const slots = slotsPerGpu.reduce((a, b) => a + b, 0)
  if (slots > MOST_SLOTS)
    throw bad(`${slots} slots`, `Give at most ${MOST_SLOTS} slots in all (logical and redundant experts of one layer)`)
  const nodeOfGpu = nodesOf(options)
  const dead = [...new Set(options.dead ?? [])].sort((a, b) => a - b)
  for (const gpu of dead)
    if (!isCount(gpu, 0) || gpu >= gpus)
      throw bad(`GPU ${String(gpu)} is named dead, but GPUs are 0 to ${gpus - 1}`, 'Name only GPUs that exist')
  if (dead.length === gpus) throw bad('every GPU is dead', 'Leave at least one GPU alive')
  return Object.freeze({
    gpus,
    slotsPerGpu: Object.freeze(slotsPerGpu),
    nodeOfGpu: Object.freeze(nodeOfGpu),
    dead: Object.freeze(dead),
  })
}

function slotsOf({ gpus, physical, slotsPerGpu }: ClusterOptions): number[] {
  if (slotsPerGpu) {
    if (slotsPerGpu.length !== gpus)
      throw bad(`${slotsPerGpu.length} slot counts for ${gpus} GPUs`, `Give ${gpus} slot counts`)
    for (const n of slotsPerGpu)
      if (!isCount(n, 0)) throw bad(`a GPU with ${String(n)} slots`, 'Give whole slot counts of at least 0')
    const sum = slotsPerGpu.reduce((a, b) => a + b, 0)
    if (physical !== undefined && physical !== sum)
      throw bad(
        `the slot counts sum to ${sum}, not to ${physical}`,
        `Make the slot counts sum to ${physical}, or change the redundant experts`,
      )
    return [...slotsPerGpu]
  }
  if (!isCount(physical, 1))
    throw bad(`${String(physical)} slots`, 'Give the number of physical experts, or the slots of each GPU')
  return Array.from({ length: gpus }, (_, g) => Math.floor(physical / gpus) + (g < physical % gpus ? 1 : 0))
}

function nodesOf({ gpus, nodes = 1, nodeOfGpu }: ClusterOptions): number[] {
  if (nodeOfGpu) {
    if (nodeOfGpu.length !== gpus)
      throw bad(`${nodeOfGpu.length} node indices for ${gpus} GPUs`, `Give ${gpus} node indices`)
    for (const [g, node] of nodeOfGpu.entries()) {
      const last = g === 0 ? -1 : nodeOfGpu[g - 1]!
      if (node !== last && node !== last + 1)
        throw bad(
          `GPU ${g} is in node ${String(node)} after a GPU in node ${last}`,
          'Number nodes 0, 1, 2 … in the order of their GPUs',
        )
      if (g === 0 && node !== 0) throw bad(`GPU 0 is in node ${String(node)}`, 'Begin with node 0')
    }
    return [...nodeOfGpu]
  }
  if (!isCount(nodes, 1)) throw bad(`${String(nodes)} nodes`, 'Give at least 1 node')
  if (gpus % nodes !== 0) {
    const fits = [...divisors(gpus)].filter(d => d <= 2 * nodes).slice(-3)
    throw bad(
      `${gpus} GPUs do not divide over ${nodes} nodes`,
      `Use ${fits.join(', ')} nodes, or ${Math.ceil(gpus / nodes) * nodes} GPUs`,
    )
  }
  const perNode = gpus / nodes
  return Array.from({ length: gpus }, (_, g) => Math.floor(g / perNode))
}

function* divisors(n: number): Generator<number> {
  for (let d = 1; d <= n; d++) if (n % d === 0) yield d
}

export const physicalOf = (cluster: Cluster): number => cluster.slotsPerGpu.reduce((a, b) => a + b, 0)
export const nodesIn = (cluster: Cluster): number => cluster.nodeOfGpu[cluster.gpus - 1]! + 1

/** First slot of each GPU, and one past the last slot: length gpus + 1. */
export function slotStarts(cluster: Cluster): Int32Array {
  const starts = new Int32Array(cluster.gpus + 1)
  for (let g = 0; g < cluster.gpus; g++) starts[g + 1] = starts[g]! + cluster.slotsPerGpu[g]!
  return starts
}

/** GPU of every slot. */
export function gpuOfSlots(cluster: Cluster): Int32Array {
  const out = new Int32Array(physicalOf(cluster))
  const starts = slotStarts(cluster)
  for (let g = 0; g < cluster.gpus; g++) out.fill(g, starts[g], starts[g + 1])
  return out
}

/** 1 for GPUs that are alive. */
export function aliveMask(cluster: Cluster): Uint8Array {
  const alive = new Uint8Array(cluster.gpus).fill(1)
  for (const gpu of cluster.dead) alive[gpu] = 0
  return alive
}

/** Slots of live GPUs. */
export function liveSlots(cluster: Cluster): number {
  const alive = aliveMask(cluster)
  return cluster.slotsPerGpu.reduce((sum, n, g) => sum + (alive[g] ? n : 0), 0)
}

/** Throws SY_EPLB_TOO_FEW_SLOTS unless every logical expert can have a live slot. */
export function checkRoom(cluster: Cluster, experts: number): void {
  const slots = liveSlots(cluster)
  if (slots < experts) throw new EplbError('SY_EPLB_TOO_FEW_SLOTS', { slots, experts, missing: experts - slots })
}
