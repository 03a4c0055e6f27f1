// The replay as a page, and its course over time as one chart.

import type { ReplayReport } from '../../eplb/index.js'
import { barChart, figure, heading, htmlPage, htmlTable, lineChart, paragraph } from '../draw/index.js'
import { bytes } from '../report.js'
import { describeCluster, describeLoad } from './describe.js'
import type { PlanInput } from './input.js'
import { four, milliseconds, whole } from './output.js'
import { featured, REPLAY_HEAD, replayCells, runName } from './rows.js'

/** Points a line may have; longer runs are drawn as means of equal parts. */
const MOST_POINTS = 400

export function replayCharts(report: ReplayReport) {
  const ran = report.runs.filter(run => run.refused === null)
  const ordered = [
    ...ran.filter(run => run.algorithm === 'switchyard' && !run.once),
    ...ran.filter(run => run.algorithm !== 'switchyard' && run.algorithm !== 'none' && !run.once),
    ...ran.filter(run => run.once),
    ...ran.filter(run => run.algorithm === 'none'),
  ]
  const color = (i: number, algorithm: string) =>
    algorithm === 'none' ? 7 : algorithm === 'switchyard' && i === 0 ? 0 : 1 + ((i + 5) % 6)
  const part = Math.max(1, Math.ceil(report.sizes.steps / MOST_POINTS))
  const x = Array.from({ length: Math.ceil(report.sizes.steps / part) }, (_, i) => i * part)
  return {
    overTime: (width: number) =>
      lineChart(
        {
          title: 'Balancedness over time (dots: rebalances)',
          xLabel: 'step',
          yLabel: 'mean over layers',
          yTo: 1,
          x,
          series: ordered.map((run, i) => ({
            name: runName(run),
            color: color(i, run.algorithm),
            values: x.map(from => {
              const values = run.balancedness.slice(from, from + part)
              return values.reduce((a, b) => a + b, 0) / values.length
            }),
            marks: run.rebalances.map(r => Math.floor(r.step / part)),
          })),
        },
        width,
        width < 500 ? 320 : 340,
      ),
    moves: (width: number) =>
      barChart(
        {
          title: 'Experts moved over the whole run',
          bars: ordered
            .filter(run => run.algorithm !== 'none')
            .map((run, i) => ({
              name: runName(run),
              value: run.moves,
              text: whole(run.moves),
              color: color(i, run.algorithm),
            })),
        },
        width,
      ),
  }
}

export function replayPage(given: PlanInput, report: ReplayReport): string {
  const charts = replayCharts(report)
  const sections = [
    paragraph(describeLoad(given.load, given.counts)),
    paragraph(describeCluster(report.sizes)),
    paragraph(`Every ${report.interval} steps each policy looks at the last ${report.window}.`),
    ...given.notes.map(note => paragraph(note, true)),
    figure(charts.overTime),
    htmlTable(REPLAY_HEAD, report.runs.map(replayCells)),
    ...report.runs.flatMap(run => (run.refused === null ? [] : [paragraph(`${runName(run)}: ${run.refused}`, true)])),
    figure(charts.moves),
  ]
  const shown = featured(report)
  if (shown !== undefined && shown.rebalances.length > 0) {
    const rows = shown.rebalances.map(r => [
      String(r.step),
      four(r.before),
      four(r.planned),
      whole(r.moves),
      r.bytes === null ? '–' : bytes(r.bytes),
      milliseconds(r.milliseconds),
    ])
    sections.push(heading(`Rebalances of ${runName(shown)}`))
    sections.push(htmlTable(['after step', 'window before', 'planned', 'moves', 'bytes', 'planning'], rows))
  }
  return htmlPage('Expert load replayed', given.load.files.join(', '), sections)
}
