// One conversion per node and start: the weights of all ranks' programs, each distinct piece once. Ranks that hold the
// same shard share it; ranks that hold different shards of one name get names of their own in the union.
import type { LoadedWeights, WeightPlan, WeightSpec } from '../formats/weight-spec.js'

export interface WeightUnion {
  /** Every distinct weight of the node. */
  readonly plan: WeightPlan
  /** For each rank: name in its program → name in the union. */
  readonly names: readonly ReadonlyMap<string, string>[]
}

export function uniteWeights(plans: readonly WeightPlan[]): WeightUnion {
  const byContent = new Map<string, string>()
  const united = new Map<string, WeightSpec>()
  const names = plans.map(plan => {
    const own = new Map<string, string>()
    for (const spec of plan.weights) {
      const { name, ...content } = spec
      const key = JSON.stringify(content)
      let unique = byContent.get(key)
      if (unique === undefined) {
        unique = united.has(name) ? `${name}#${united.size}` : name
        byContent.set(key, unique)
        united.set(unique, { ...spec, name: unique })
      }
      own.set(name, unique)
    }
    return own
  })
  return { plan: { weights: [...united.values()], skip: tensor => plans[0]!.skip(tensor) }, names }
}

/** The weights of one rank under the names of its program. The memory is shared. */
export function weightsOfRank(loaded: LoadedWeights, names: ReadonlyMap<string, string>): LoadedWeights {
  const pick = <T>(from: Readonly<Record<string, T>>): Record<string, T> => {
    const own: Record<string, T> = {}
    for (const [name, unique] of names) if (from[unique] !== undefined) own[name] = from[unique]
    return own
  }
  return { ...loaded, matrices: pick(loaded.matrices), vectors: pick(loaded.vectors) }
}
