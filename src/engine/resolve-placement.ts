// --init-expert-location → the placement the engine starts with: trivial, a map from a file or inline JSON, or a plan made
// from a recorded load (logical_count), as SGLang's ExpertLocationMetadata does. Rows of layers without experts count too.
import {
  type Counts,
  getAlgorithm,
  makeCluster,
  makeCounts,
  makePlacement,
  type Placement,
  trivialPlacement,
} from '../eplb/index.js'
import {
  isPlacementOnly,
  openFile,
  type PlacementMap,
  readExpertLoad,
  readPlacement,
} from '../formats/expert-load/index.js'
import type { ModelSpec } from '../formats/model-spec.js'
import { ParallelError, type ParallelSizes } from '../parallel/index.js'

/**
 * @returns null for a model without routed experts
 * @throws ParallelError when the file is of another model, or the model has no experts to place; ExpertLoadError when it cannot be read
 */
export function resolvePlacement(
  location: string,
  spec: ModelSpec,
  sizes: ParallelSizes,
  redundant: number,
): Placement | null {
  const ffn = spec.layers.find(l => l.ffn.kind === 'moe')?.ffn
  if (ffn?.kind !== 'moe') {
    if (location === 'trivial') return null
    throw new ParallelError('SY_PARALLEL_SIZES', {
      what: '--init-expert-location is given, but the model has no routed experts',
      remedy: 'Leave --init-expert-location out.',
    })
  }
  const { experts, groups } = ffn.router
  const layers = spec.layers.length
  const physical = experts + redundant
  const cluster = makeCluster({ gpus: sizes.ep, nodes: sizes.nodes, physical })
  if (location === 'trivial') return trivialPlacement(layers, experts, cluster)

  const given = readLocation(location)
  const source = location.trimStart().startsWith('{') ? 'the inline JSON' : location
  if ('physicalToLogical' in given) {
    if (given.layers !== layers || given.physical !== physical || given.logical > experts) {
      throw mismatch(
        source,
        `${given.layers} layers of ${given.physical} physical experts`,
        layers,
        `${physical} physical experts`,
      )
    }
    return makePlacement(given.physicalToLogical, experts, cluster)
  }
  if (given.layers !== layers || given.experts !== experts) {
    throw mismatch(source, `${given.layers} layers of ${given.experts} experts`, layers, `${experts} experts`)
  }
  return getAlgorithm('auto').plan({ counts: given, cluster, groups }).placement
}

function readLocation(location: string): PlacementMap | Counts {
  if (location.trimStart().startsWith('{')) {
    if (!/"logical_count"/.test(location)) return readPlacement(location)
    try {
      return makeCounts(JSON.parse(location).logical_count)
    } catch (cause) {
      if (!(cause instanceof SyntaxError)) throw cause
      return readPlacement(location)
    }
  }
  if (isPlacementOnly(openFile(location).value)) return readPlacement(location)
  const load = readExpertLoad([location])
  return makeCounts({ steps: load.steps, layers: load.layers, experts: load.logical, data: load.counts })
}

const mismatch = (source: string, found: string, layers: number, expected: string) =>
  new ParallelError('SY_PARALLEL_SIZES', {
    what: `--init-expert-location ${source} describes ${found}, the model has ${layers} layers of ${expected}`,
    remedy: 'Use a placement of this model, and --ep-num-redundant-experts as it was planned for.',
  })
