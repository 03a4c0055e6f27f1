// All balancing algorithms by name: the CLI's choices, in the order in which tables show them. Not here: what they do.
import { nodesIn } from '../cluster.js'
import { EplbError } from '../errors.js'
import type { AlgorithmChoice, AlgorithmName, BalancingAlgorithm, BalancingInput } from '../types.js'
import { deepseek, deepseekHierarchical } from './deepseek.js'
import { deepseekVec, deepseekVecHierarchical } from './deepseek-vec.js'
import { elasticityAware, elasticityAwareHierarchical } from './elasticity-aware.js'
import { switchyard } from './switchyard/switchyard.js'

/**
 * SGLang's rule: with dead GPUs elasticity_aware; else hierarchical iff the model has groups and they divide over the
 * nodes; else flat.
 */
export function autoPick(input: BalancingInput): AlgorithmName {
  if (input.cluster.dead.length > 0) return 'elasticity_aware'
  return input.groups !== undefined && input.groups % nodesIn(input.cluster) === 0
    ? 'deepseek_hierarchical'
    : 'deepseek'
}

const auto: BalancingAlgorithm = {
  name: 'auto',
  summary:
    "SGLang's pick: deepseek_hierarchical when groups divide over nodes, else deepseek; elasticity_aware with dead GPUs",
  plan: input => getAlgorithm(autoPick(input)).plan(input),
}

const algorithms: readonly BalancingAlgorithm[] = [
  deepseek,
  deepseekHierarchical,
  deepseekVec,
  deepseekVecHierarchical,
  elasticityAware,
  elasticityAwareHierarchical,
  switchyard,
  auto,
]

/** Names and one-line summaries, for help texts. */
export function algorithmChoices(): readonly { readonly name: AlgorithmChoice; readonly summary: string }[] {
  return algorithms.map(({ name, summary }) => ({ name, summary }))
}

/** @throws EplbError SY_EPLB_ALGORITHM for a name that is not among the choices. */
export function getAlgorithm(name: string): BalancingAlgorithm {
  const found = algorithms.find(a => a.name === name)
  if (!found) throw new EplbError('SY_EPLB_ALGORITHM', { name, names: algorithms.map(a => a.name).join(', ') })
  return found
}
