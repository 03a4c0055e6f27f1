// The plan report as a page: the numbers, balancedness per layer, load per GPU before and after, moves, replicas.

import type { PlanReport } from '../../eplb/index.js'
import {
  barChart,
  command,
  figure,
  heading,
  heatMap,
  htmlPage,
  htmlTable,
  lineChart,
  paragraph,
  type Tile,
  tiles,
} from '../draw/index.js'
import { bytes } from '../report.js'
import { crossingText, describeCluster, describeLoad, possiblePerLayer, withGaps, worstLayer } from './describe.js'
import type { PlanInput } from './input.js'
import { four, whole } from './output.js'
import { launchFlags } from './rows.js'

export function planCharts(report: PlanReport) {
  const { before, after } = report
  return {
    perLayer: (width: number) =>
      lineChart(
        {
          title: 'Balancedness of each layer',
          xLabel: 'layer',
          yLabel: 'mean load ÷ largest load of a GPU',
          yTo: 1,
          series: [
            {
              name: `after (${report.algorithm})`,
              color: 0,
              values: withGaps(after),
              marks: [...after.balancednessPerLayer.keys()],
            },
            {
              name: `before (${report.beforeIs})`,
              color: 7,
              values: withGaps(before),
              marks: [...before.balancednessPerLayer.keys()],
            },
            { name: 'no placement can do better', color: 3, dashed: true, values: possiblePerLayer(after) },
          ],
        },
        width,
      ),
    heat: (when: 'before' | 'after', width: number) =>
      heatMap(
        {
          title: `Load of each GPU ${when}`,
          rows: (when === 'before' ? before : after).gpuLoad,
          rowLabel: 'layer',
          columnLabel: 'GPU',
        },
        width,
      ),
  }
}

/** Bars for few GPUs, a line for many. */
function receivedChart(received: readonly number[], width: number): string {
  if (received.length <= 16) {
    const bars = received.map((n, gpu) => ({ name: `GPU ${gpu}`, value: n, text: whole(n), color: 0 }))
    return barChart({ title: 'All layers', bars }, width)
  }
  const series = [{ name: 'experts received, all layers', color: 0, values: received }]
  return lineChart({ title: 'All layers', xLabel: 'GPU', yLabel: 'experts', yFrom: 0, series }, width, 220)
}

export function planPage(given: PlanInput, report: PlanReport, out: string | undefined): string {
  const { before, after, moves, sizes } = report
  const charts = planCharts(report)
  const worst = worstLayer(after)
  const facts: Tile[] = [
    {
      name: 'Balancedness',
      value: four(after.balancedness),
      note: `before (${report.beforeIs}): ${four(before.balancedness)}${report.withoutRedundant === null ? '' : `; without redundant experts: ${four(report.withoutRedundant)}`}`,
    },
    {
      name: 'Least balanced layer',
      value: four(worst.balancedness),
      note: worst.layer < 0 ? 'no load' : `layer ${worst.layer}`,
    },
    { name: 'Peak over lower bound', value: four(after.peakOverBound), note: '1 is proved optimal' },
  ]
  if (moves !== null) {
    const size = moves.bytes === null ? '' : `${bytes(moves.bytes)}, `
    facts.push({
      name: 'Experts that move',
      value: whole(moves.moves),
      note: `${size}${whole(moves.crossNode)} between nodes`,
    })
  }
  if (sizes.nodes > 1)
    facts.push({ name: 'Crosses nodes', value: crossingText(report.links.crossing), note: 'of routed tokens' })
  const sections = [
    paragraph(describeLoad(given.load, given.counts)),
    paragraph(describeCluster(sizes)),
    ...given.notes.map(note => paragraph(note, true)),
    tiles(facts),
    figure(charts.perLayer),
    heading('Load of each GPU'),
    figure(width => charts.heat('before', width)),
    figure(width => charts.heat('after', width)),
  ]
  if (moves !== null && moves.moves > 0) {
    sections.push(
      heading('Experts each GPU receives'),
      figure(width => receivedChart(moves.receivedPerGpu, width)),
    )
  }
  sections.push(heading('Experts with the most replicas'))
  const rows = report.replicated.map((list, layer) => [
    String(layer),
    list.length === 0 ? 'none' : list.map(r => `${r.expert} (${r.replicas})`).join(', '),
  ])
  sections.push(htmlTable(['layer', 'expert (replicas)'], rows))
  if (out !== undefined) sections.push(heading('Put it into effect'), command(launchFlags(report, out)))
  return htmlPage('Expert placement', `${report.algorithm}, ${given.load.files.join(', ')}`, sections)
}
