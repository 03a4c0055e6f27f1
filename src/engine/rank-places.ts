// Where each rank computes: a device of the node, memory lent there, and the rank's weights in it. Ranks of one place share what
// they have in common; every other place has a copy of its own.

import type { EngineFlags } from '../config/flags.js'
import type { MemoryLender } from '../device/memory.js'
import type { LoadedWeights } from '../formats/weight-spec.js'
import { type EngineHooks, loadWeightsOf, type ModelPlan } from './load-model.js'
import type { NodeDevice } from './node-device.js'
import { weightsOfRank } from './weight-union.js'

export interface RankPlace {
  readonly device: NodeDevice
  readonly lender: MemoryLender
  /** Under the names of the rank's program. */
  readonly weights: LoadedWeights
}

/** By rank. */
export type RankPlaces = readonly RankPlace[]

/** Packs the weights of all ranks, place after place. */
export async function loadRankPlaces(
  plan: ModelPlan,
  flags: EngineFlags,
  node: NodeDevice,
  hooks: EngineHooks,
): Promise<RankPlaces> {
  const places: RankPlace[] = []
  const what = flags.loadFormat === 'dummy' ? 'drawing weights' : 'packing weights'
  for (const { ranks, weights, weightBytes } of plan.weightPlaces) {
    const device = placeOf(node, ranks[0]!)
    const lender = device.createLender(weightBytes + weights.plan.weights.length * ARENA_PLACES)
    const stage = plan.weightPlaces.length > 1 ? `${what} on ${gpuOf(node, ranks[0]!)}` : what
    const loaded = await loadWeightsOf(plan, weights, flags, device, lender, (done, total) =>
      hooks.onProgress?.({ stage, done, total }),
    )
    ranks.forEach((rank, i) => {
      places[rank] = { device, lender, weights: weightsOfRank(loaded, weights.names[i]!) }
    })
  }
  return places
}

/** "cuda:1". */
const gpuOf = ({ accelerator }: NodeDevice, rank: number): string =>
  `${accelerator?.kind}:${accelerator?.gpuOfRank?.(rank)}`

/** The same places with fresh memory beside the weights. */
export function freshLenders(places: RankPlaces): RankPlaces {
  const fresh = new Map<NodeDevice, MemoryLender>()
  return places.map(place => {
    const lender = fresh.get(place.device) ?? place.device.createLender()
    fresh.set(place.device, lender)
    return { ...place, lender }
  })
}

export const placeOf = (node: NodeDevice, rank: number): NodeDevice => node.placeOf?.(rank) ?? node

/** All lenders, each once. */
export const lendersOf = (places: RankPlaces): readonly RankPlace[] =>
  places.filter((p, i) => places.findIndex(other => other.lender === p.lender) === i)

/** A device may begin every span on a multiple of so many bytes. */
const ARENA_PLACES = 1024
