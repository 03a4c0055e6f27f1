// A benchmark of a server as one plain object (--json, --save-result) and as a page with charts (--html).
import { figure, heading, htmlPage, htmlTable, lineChart, paragraph, tiles } from '../../draw/index.js'
import { METRICS, type RunResult } from './result.js'

export interface ServeReport {
  readonly version: string
  readonly date: string
  readonly machine: { readonly processor: string; readonly cores: number; readonly node: string }
  readonly baseUrl: string
  readonly backend: string
  readonly model: string
  readonly dataset: string
  readonly numPrompts: number
  readonly seed: number
  /** One a request rate. */
  readonly runs: readonly RunResult[]
}

const ms = (value: number): string => `${value < 10 ? value.toFixed(2) : value.toFixed(1)} ms`
const whole = (value: number): string => Math.round(value).toLocaleString('en-US')

export function htmlReport(report: ServeReport): string {
  const { machine, runs } = report
  const best = runs.reduce((a, b) => (b.outputThroughput > a.outputThroughput ? b : a))
  const sections = [
    tiles([
      { name: 'output tokens/s', value: whole(best.outputThroughput) },
      { name: 'requests/s', value: best.requestThroughput.toFixed(1) },
      { name: 'median TTFT', value: ms(best.latency.ttft.median) },
      { name: 'median ITL', value: ms(best.latency.itl.median) },
      { name: 'failed', value: String(runs.reduce((sum, run) => sum + run.failed, 0)) },
    ]),
  ]
  if (runs.length > 1) sections.push(...sweepCharts(runs))
  sections.push(heading('Latency, in milliseconds'), latencyTable(runs), heading('Runs'), runTable(runs))
  sections.push(
    paragraph(
      `${report.dataset}, ${report.numPrompts} prompts, seed ${report.seed}; ${machine.processor}, ${machine.cores} cores, Node ${machine.node}; Switchyard ${report.version}, ${report.date}.`,
      true,
    ),
  )
  const footer = 'Made by <code>switchyard bench serve</code>.'
  return htmlPage(`Serving benchmark: ${report.model}`, `${report.backend} at ${report.baseUrl}`, sections, footer)
}

/** Throughput on the x axis, so that runs at "inf" have a place too. */
function sweepCharts(runs: readonly RunResult[]): readonly string[] {
  const sorted = [...runs].sort((a, b) => a.requestThroughput - b.requestThroughput)
  const x = sorted.map(run => Number(run.requestThroughput.toFixed(2)))
  const chart = (title: string, metric: 'ttft' | 'itl') =>
    figure(width =>
      lineChart(
        {
          title,
          xLabel: 'requests/s that were answered',
          yLabel: 'ms',
          x,
          yFrom: 0,
          series: [
            { name: 'median', color: 0, values: sorted.map(run => run.latency[metric].median) },
            ...Object.keys(sorted[0]!.latency[metric].percentiles).map((p, i) => ({
              name: `p${p}`,
              color: i + 1,
              values: sorted.map(run => run.latency[metric].percentiles[p]!),
            })),
          ],
        },
        width,
      ),
    )
  return [chart('Time to first token', 'ttft'), chart('Inter-token latency', 'itl')]
}

const rateName = (run: RunResult): string => (run.requestRate === 'inf' ? 'inf' : String(run.requestRate))

function latencyTable(runs: readonly RunResult[]): string {
  const percentiles = Object.keys(runs[0]!.latency.ttft.percentiles)
  const rows = runs.flatMap(run =>
    METRICS.map(metric => {
      const { mean, median, std, percentiles: at } = run.latency[metric]
      return [
        rateName(run),
        metric.toUpperCase(),
        ...[mean, median, std, ...percentiles.map(p => at[p]!)].map(v => v.toFixed(2)),
      ]
    }),
  )
  return htmlTable(['rate', 'metric', 'mean', 'median', 'std', ...percentiles.map(p => `p${p}`)], rows)
}

function runTable(runs: readonly RunResult[]): string {
  const head = ['rate', 'done', 'failed', 's', 'req/s', 'goodput', 'out tok/s', 'total tok/s', 'peak']
  const rows = runs.map(run => [
    rateName(run),
    String(run.completed),
    String(run.failed),
    run.durationSeconds.toFixed(1),
    run.requestThroughput.toFixed(2),
    run.requestGoodput === null ? '–' : run.requestGoodput.toFixed(2),
    whole(run.outputThroughput),
    whole(run.totalTokenThroughput),
    String(run.peakConcurrency),
  ])
  return htmlTable(head, rows)
}
