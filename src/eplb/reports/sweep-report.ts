// Utilisation over expert-parallel sizes, with and without balancing: the report of `eplb sweep`. Utilisation is the mean
// balancedness: the share of the slowest GPU's time in which the average GPU has expert work.
import { autoPick, getAlgorithm } from '../algorithms/registry.js'
import { makeCluster } from '../cluster.js'
import { meanBalancedness, quality } from '../loads.js'
import { trivialPlacement } from '../placement.js'
import type { AlgorithmName, BalancingInput, Counts } from '../types.js'
import { attempt, checkOption } from './common.js'
import type { SweepOptions, SweepReport, SweepRow } from './types.js'

/** @throws EplbError SY_EPLB_OPTION for sizes that are not whole numbers. */
export function sweepReport(counts: Counts, options: SweepOptions): SweepReport {
  const { redundant = 0, gpusPerNode = 8 } = options
  checkOption('redundant', redundant, 'a whole number of at least 0', Number.isSafeInteger(redundant) && redundant >= 0)
  checkOption(
    'gpusPerNode',
    gpusPerNode,
    'a whole number of at least 1',
    Number.isSafeInteger(gpusPerNode) && gpusPerNode >= 1,
  )
  const rows = options.gpus.map((gpus, i) => {
    checkOption('gpus', gpus, 'whole numbers from 1 to 65536', Number.isSafeInteger(gpus) && gpus >= 1 && gpus <= 65536)
    options.progress?.(i, options.gpus.length, `${gpus} GPUs`)
    return row(counts, gpus, gpusPerNode, redundant, options)
  })
  options.progress?.(rows.length, rows.length, 'done')
  return { steps: counts.steps, layers: counts.layers, logical: counts.experts, redundant, rows }
}

function row(counts: Counts, gpus: number, gpusPerNode: number, redundant: number, options: SweepOptions): SweepRow {
  const nodeOfGpu = Array.from({ length: gpus }, (_, g) => Math.floor(g / gpusPerNode))
  const roundUp = (n: number) => Math.ceil(n / gpus) * gpus
  const physicalWithout = roundUp(counts.experts)
  const physicalWith = roundUp(counts.experts + redundant)
  const plain = makeCluster({ gpus, nodeOfGpu, physical: physicalWithout })
  const input: BalancingInput = {
    counts,
    cluster: makeCluster({ gpus, nodeOfGpu, physical: physicalWith }),
    lambda: 0,
    ...(options.groups === undefined ? {} : { groups: options.groups }),
  }
  const names: readonly AlgorithmName[] = options.algorithms ?? [autoPick(input), 'switchyard']
  return {
    gpus,
    nodes: nodeOfGpu[gpus - 1]! + 1,
    physicalWithout,
    physicalWith,
    without: meanBalancedness(quality(trivialPlacement(counts.layers, counts.experts, plain), counts)),
    with: names.map(algorithm => {
      const { value } = attempt(() => getAlgorithm(algorithm).plan(input))
      return { algorithm, utilisation: value ? meanBalancedness(quality(value.placement, counts)) : null }
    }),
  }
}
