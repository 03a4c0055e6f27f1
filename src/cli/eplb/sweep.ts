// `switchyard eplb sweep`: how well a load fills different numbers of GPUs, with and without balancing.

import { Command } from 'commander'
import { type AlgorithmName, type SweepReport, sweepReport } from '../../eplb/index.js'
import { readExpertLoad } from '../../formats/expert-load/index.js'
import { barChart, figure, htmlPage, htmlTable, lineChart, paragraph, terminalBar } from '../draw/index.js'
import type { CliIo } from '../io.js'
import { printReport } from '../report.js'
import { describeLoad } from './describe.js'
import { countsOfLoad } from './input.js'
import { addOutputFlags, algorithmList, option, PLAN, wholeList, wholeNumber } from './options.js'
import { four, percent, SVG_WIDTH, terminalStyle, withProgress, writePictures } from './output.js'
import { fittingTable } from './rows.js'

interface SweepFlags {
  readonly gpus: number[]
  readonly gpusPerNode: number
  readonly redundant?: number
  readonly groups?: number
  readonly algorithm?: AlgorithmName[]
  readonly last?: number
  readonly json?: boolean
  readonly html?: string
  readonly svg?: string
}

const EXAMPLES = `
Examples:
  switchyard eplb sweep dump.pt --gpus 8,12,16,32,72,144 --redundant 32
  switchyard eplb sweep dump.pt --gpus 4,8,16,32 --groups 8 --html sweep.html

Utilisation is the mean balancedness: the share of the GPUs' time that is not spent waiting for the busiest one.`

export function sweepCommand(io: CliIo): Command {
  const command = new Command('sweep')
    .description('utilisation over numbers of GPUs, with and without balancing')
    .argument('<files...>', 'recorder dump (all ranks of it), JSON or .npy')
    .addOption(
      option('Cluster:', '--gpus <list>', 'numbers of GPUs to try', t => wholeList('--gpus', t, 1)).default([
        4, 8, 16, 32, 64,
      ]),
    )
    .addOption(
      option('Cluster:', '--gpus-per-node <n>', 'GPUs of a node', t => wholeNumber('--gpus-per-node', t, 1)).default(8),
    )
    .addOption(
      option('Cluster:', '--redundant <n>', 'redundant experts, rounded up until slots divide', t =>
        wholeNumber('--redundant', t, 0),
      ),
    )
    .addOption(
      option('Cluster:', '--groups <n>', 'expert groups of group-limited routing', t => wholeNumber('--groups', t, 1)),
    )
    .addOption(
      option(PLAN, '--algorithm <list>', 'algorithms to try (default: what auto picks, and switchyard)', t =>
        algorithmList('--algorithm', t),
      ),
    )
    .addOption(
      option(PLAN, '--last <steps>', 'plan from the last steps of the recording only', t =>
        wholeNumber('--last', t, 1),
      ),
    )
  return addOutputFlags(command)
    .addHelpText('after', EXAMPLES)
    .action((files: string[], flags: SweepFlags) => runSweep(io, files, flags))
}

function runSweep(io: CliIo, files: readonly string[], flags: SweepFlags): void {
  const load = readExpertLoad(files)
  const counts = countsOfLoad(load, flags.last)
  const report = withProgress(io, progress =>
    sweepReport(counts, {
      gpus: flags.gpus,
      gpusPerNode: flags.gpusPerNode,
      progress,
      ...(flags.redundant === undefined ? {} : { redundant: flags.redundant }),
      ...(flags.groups === undefined ? {} : { groups: flags.groups }),
      ...(flags.algorithm === undefined ? {} : { algorithms: flags.algorithm }),
    }),
  )
  const about = describeLoad(load, counts)
  writePictures(io, flags, {
    html: () => sweepPage(files, about, load.notes, report),
    svg: () => sweepChart(report, SVG_WIDTH),
  })
  printReport(io, flags.json === true, { files: load.files, notes: load.notes, ...report }, () =>
    sweepText(io, about, load.notes, report),
  )
}

const names = (report: SweepReport): AlgorithmName[] => [
  ...new Set(report.rows.flatMap(row => row.with.map(w => w.algorithm))),
]

function sweepTable(report: SweepReport): { head: string[]; rows: string[][] } {
  const algorithms = names(report)
  const head = ['GPUs', 'nodes', 'slots without', 'slots with', 'without', ...algorithms]
  const rows = report.rows.map(row => [
    String(row.gpus),
    String(row.nodes),
    String(row.physicalWithout),
    String(row.physicalWith),
    four(row.without),
    ...algorithms.map(name => {
      const value = row.with.find(w => w.algorithm === name)?.utilisation ?? null
      return value === null ? '–' : four(value)
    }),
  ])
  return { head, rows }
}

function sweepText(io: CliIo, about: string, notes: readonly string[], report: SweepReport): string {
  const style = terminalStyle(io)
  const { head, rows } = sweepTable(report)
  let text = `load  ${about}\n${notes.map(note => `note  ${note}\n`).join('')}\n${fittingTable(head, rows, style.width)}\nutilisation without and with balancing\n`
  const room = Math.max(10, Math.min(50, style.width - 30))
  for (const row of report.rows) {
    const best = Math.max(...row.with.map(w => w.utilisation ?? 0), 0)
    text += `${`${row.gpus} GPUs`.padStart(9)}  ${terminalBar(row.without, 1, room)} ${percent(row.without)}\n`
    text += `${' '.repeat(9)}  ${terminalBar(best, 1, room)} ${percent(best)}\n`
  }
  return text
}

function sweepChart(report: SweepReport, width: number): string {
  const x = report.rows.map(row => row.gpus)
  const algorithms = [...names(report)].sort((a, b) => Number(b === 'switchyard') - Number(a === 'switchyard'))
  const at = (name: AlgorithmName) =>
    report.rows.map(row => row.with.find(w => w.algorithm === name)?.utilisation ?? Number.NaN)
  const series = [
    ...algorithms.map((name, i) => ({
      name,
      color: name === 'switchyard' ? 0 : 1 + (i % 6),
      values: at(name),
      marks: [...x.keys()],
    })),
    { name: 'without balancing', color: 7, values: report.rows.map(row => row.without), marks: [...x.keys()] },
  ]
  if (x.length > 1) {
    return lineChart(
      {
        title: 'Utilisation of the GPUs',
        xLabel: 'GPUs',
        yLabel: 'mean balancedness',
        yFrom: 0,
        yTo: 1,
        x,
        evenX: true,
        series,
      },
      width,
    )
  }
  const bars = series.map(s => ({ name: s.name, value: s.values[0]!, text: four(s.values[0]!), color: s.color }))
  return barChart({ title: `Utilisation of ${x[0]} GPUs`, bars, most: 1 }, width)
}

function sweepPage(files: readonly string[], about: string, notes: readonly string[], report: SweepReport): string {
  const { head, rows } = sweepTable(report)
  return htmlPage('Utilisation over GPUs', files.join(', '), [
    paragraph(about),
    ...notes.map(note => paragraph(note, true)),
    figure(width => sweepChart(report, width)),
    htmlTable(head, rows),
    paragraph('Without: every expert once. With: redundant experts, placed by the algorithm.', true),
  ])
}
