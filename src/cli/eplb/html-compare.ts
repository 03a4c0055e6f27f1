// The comparison of algorithms as a page, and its overview as one chart.

import type { CompareReport, CompareRow } from '../../eplb/index.js'
import {
  type Bar,
  barChart,
  figure,
  heading,
  heatMap,
  htmlPage,
  htmlTable,
  lineChart,
  paragraph,
} from '../draw/index.js'
import { describeCluster, describeLoad, possiblePerLayer, withGaps } from './describe.js'
import type { PlanInput } from './input.js'
import { four, whole } from './output.js'
import { COMPARE_HEAD, compareCells } from './rows.js'

/** Ours is series 0; the others keep their place in the table. */
const colorOf = (report: CompareReport, row: CompareRow): number =>
  row.algorithm === 'switchyard' ? 0 : 1 + (report.rows.filter(r => r.algorithm !== 'switchyard').indexOf(row) % 6)

export function compareCharts(report: CompareReport) {
  const ordered = [...report.rows].sort((a, b) => (b.after?.balancedness ?? -1) - (a.after?.balancedness ?? -1))
  const possible = possibleMean(report)
  const bars: Bar[] = [
    ...ordered.map(row => ({
      name: row.algorithm,
      value: row.after?.balancedness ?? null,
      text: row.after === null ? `refused: ${row.refused?.message ?? ''}` : four(row.after.balancedness),
      color: row.algorithm === 'switchyard' ? 0 : 1,
    })),
    {
      name: `before (${report.beforeIs})`,
      value: report.before.balancedness,
      text: four(report.before.balancedness),
      color: 7,
    },
  ]
  return {
    overview: (width: number) =>
      barChart(
        {
          title: 'Balancedness, mean over layers',
          bars,
          most: 1,
          mark: { value: possible, text: `possible at most ${four(possible)}` },
        },
        width,
      ),
    moves: (width: number) =>
      barChart(
        {
          title: 'Experts that travel between GPUs',
          bars: ordered.map(row => ({
            name: row.algorithm,
            value: row.movesRelabelled?.moves ?? null,
            text: row.movesRelabelled === null ? 'refused' : whole(row.movesRelabelled.moves),
            color: row.algorithm === 'switchyard' ? 0 : 1,
          })),
        },
        width,
      ),
    perLayer: (width: number) =>
      lineChart(
        {
          title: 'Balancedness of each layer',
          xLabel: 'layer',
          yLabel: 'mean load ÷ largest load of a GPU',
          yTo: 1,
          series: [
            ...ordered.flatMap(row =>
              row.after === null
                ? []
                : [{ name: row.algorithm, color: colorOf(report, row), values: withGaps(row.after) }],
            ),
            { name: 'before', color: 7, dashed: true, values: withGaps(report.before) },
          ].sort((a, b) => a.color - b.color),
        },
        width,
      ),
  }
}

/** Mean over loaded layers of the balancedness that no placement can exceed. */
function possibleMean(report: CompareReport): number {
  const values = possiblePerLayer(report.before).filter(Number.isFinite)
  return values.length === 0 ? 1 : values.reduce((a, b) => a + b, 0) / values.length
}

export function comparePage(given: PlanInput, report: CompareReport): string {
  const charts = compareCharts(report)
  const best = report.rows.find(row => row.algorithm === report.best)
  const sections = [
    paragraph(describeLoad(given.load, given.counts)),
    paragraph(describeCluster(report.sizes)),
    ...given.notes.map(note => paragraph(note, true)),
    figure(charts.overview),
    htmlTable(COMPARE_HEAD, report.rows.map(compareCells)),
  ]
  for (const row of report.rows) {
    if (row.refused !== null)
      sections.push(paragraph(`${row.algorithm}: ${row.refused.message} ${row.refused.remedy}`, true))
  }
  if (report.rows.some(row => row.movesRelabelled !== null))
    sections.push(
      heading('What it costs to get there'),
      figure(charts.moves),
      paragraph('GPUs and slots are renamed so that as many experts as possible stay where they are.', true),
    )
  sections.push(heading('Layer by layer'), figure(charts.perLayer), heading('Load of each GPU'))
  const heat = (title: string, rows: readonly (readonly number[])[]) =>
    figure(width => heatMap({ title, rows, rowLabel: 'layer', columnLabel: 'GPU' }, width))
  sections.push(heat(`Before (${report.beforeIs})`, report.before.gpuLoad))
  if (best?.after) sections.push(heat(`After ${best.algorithm}`, best.after.gpuLoad))
  return htmlPage('Balancing algorithms compared', given.load.files.join(', '), sections)
}
