// Sentences and rows that text and HTML share: what was read, on which cluster, and how good a placement is.

import type { Counts, MoveReport, QualityReport, Sizes } from '../../eplb/index.js'
import type { ExpertLoad } from '../../formats/expert-load/index.js'
import { bytes } from '../report.js'
import { four, percent, whole } from './output.js'

export function describeLoad(load: ExpertLoad, counts: Counts): string {
  const { steps } = counts
  const part = steps === load.steps ? plural(steps, 'step') : `the last ${whole(steps)} of ${whole(load.steps)} steps`
  const total = counts.data.reduce((a, b) => a + b, 0)
  return `${part}, ${plural(load.layers, 'layer')}, ${load.logical} experts, ${whole(total)} token-expert pairs (${load.mode}, ${load.format})`
}

const plural = (n: number, word: string): string => `${whole(n)} ${word}${n === 1 ? '' : 's'}`

export function describeCluster(sizes: Sizes): string {
  const [first] = sizes.slotsPerGpu
  const even = sizes.slotsPerGpu.every(n => n === first)
  const each = even ? `${first} a GPU` : `${Math.min(...sizes.slotsPerGpu)} to ${Math.max(...sizes.slotsPerGpu)} a GPU`
  const dead = sizes.dead.length === 0 ? '' : `, down: ${sizes.dead.join(', ')}`
  const nodes = sizes.nodes === 1 ? '1 node' : `${sizes.nodes} nodes`
  return `${plural(sizes.gpus, 'GPU')} in ${nodes}, ${sizes.physical} slots (${each}), ${sizes.physical - sizes.logical} redundant${dead}`
}

/** What runs before redundant slots are bought, where that is not what `before` describes; else nothing. */
export function withoutRedundantText(sizes: Sizes, balancedness: number | null): string {
  if (balancedness === null) return ''
  return `without redundant experts (${sizes.logical} slots, trivial placement): ${four(balancedness)} balancedness`
}

/** Layers that have any load. */
function loadedLayers(quality: QualityReport): number[] {
  return [...quality.meanPerLayer.keys()].filter(layer => quality.meanPerLayer[layer]! > 0)
}

/** The least balanced loaded layer. */
export function worstLayer(quality: QualityReport): { layer: number; balancedness: number } {
  let layer = -1
  for (const l of loadedLayers(quality)) {
    if (layer < 0 || quality.balancednessPerLayer[l]! < quality.balancednessPerLayer[layer]!) layer = l
  }
  return { layer, balancedness: layer < 0 ? 1 : quality.balancednessPerLayer[layer]! }
}

export const worstText = (quality: QualityReport): string => {
  const { layer, balancedness } = worstLayer(quality)
  return layer < 0 ? '–' : `${four(balancedness)} (layer ${layer})`
}

/** Peak and lower bound, in tokens, of the loaded layer that is furthest above its bound. */
export function peakText(quality: QualityReport): string {
  const { peakPerLayer: peak, lowerBoundPerLayer: bound } = quality
  const layers = loadedLayers(quality)
  const [first] = layers
  if (first === undefined) return '–'
  const worst = layers.reduce((a, b) => (peak[b]! / bound[b]! > peak[a]! / bound[a]! ? b : a), first)
  return `${whole(peak[worst]!)} / ${whole(bound[worst]!)} (layer ${worst})`
}

/** Balancedness that no placement can exceed, per layer: mean load over the lower bound of the peak. */
export function possiblePerLayer(quality: QualityReport): number[] {
  return quality.meanPerLayer.map((mean, l) =>
    mean > 0 ? (mean + 1e-5) / (quality.lowerBoundPerLayer[l]! + 1e-5) : Number.NaN,
  )
}

/** Per-layer values with gaps where a layer has no load. */
export function withGaps(quality: QualityReport): number[] {
  return quality.balancednessPerLayer.map((b, l) => (quality.meanPerLayer[l]! > 0 ? b : Number.NaN))
}

export function movesText(moves: MoveReport | null): string {
  if (moves === null) return '–'
  const size = moves.bytes === null ? '' : `, ${bytes(moves.bytes)}`
  return `${whole(moves.moves)} experts (${whole(moves.sameNode)} in their node, ${whole(moves.crossNode)} between nodes${size})`
}

export const crossingText = (crossing: number): string => percent(crossing)
