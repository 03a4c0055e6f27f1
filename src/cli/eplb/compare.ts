// `switchyard eplb compare`: all algorithms on the same load and cluster, side by side.

import { Command } from 'commander'
import { type AlgorithmName, type CompareReport, compareReport } from '../../eplb/index.js'
import { terminalBar } from '../draw/index.js'
import type { CliIo } from '../io.js'
import { printReport } from '../report.js'
import { describeCluster, describeLoad, withoutRedundantText } from './describe.js'
import { compareCharts, comparePage } from './html-compare.js'
import { type PlanInput, planInput } from './input.js'
import {
  addClusterFlags,
  addCurrentFlag,
  addOutputFlags,
  algorithmList,
  type ClusterFlags,
  OUTPUT,
  option,
  PLAN,
} from './options.js'
import { clock, four, SVG_WIDTH, terminalStyle, withProgress, writePictures } from './output.js'
import { COMPARE_HEAD, compareCells, fittingTable } from './rows.js'

type CompareFlags = ClusterFlags & { readonly algorithm?: AlgorithmName[]; readonly perLayer?: boolean }

const EXAMPLES = `
Examples:
  switchyard eplb compare dump.pt --gpus 32 --nodes 4 --redundant 32 --groups 8
  switchyard eplb compare dump.pt --gpus 8 --redundant 8 --current placement.json --expert-bytes 44MB --html compare.html

moves: experts that travel between GPUs to get from the placement before to this one, as the algorithm numbers its GPUs;
relabelled: the same plan with GPUs and slots renamed so that as few as possible move.`

/** Layers up to which the table per layer is printed unasked. */
const FEW_LAYERS = 12

export function compareCommand(io: CliIo): Command {
  const command = new Command('compare')
    .description('compare all balancing algorithms on a recorded expert load')
    .argument('<files...>', 'recorder dump (all ranks of it), JSON or .npy')
  addClusterFlags(command)
  return addOutputFlags(
    addCurrentFlag(command)
      .addOption(
        option(PLAN, '--algorithm <list>', 'only these, separated by commas', t => algorithmList('--algorithm', t)),
      )
      .addOption(option(OUTPUT, '--per-layer', `print a table of layers, also with more than ${FEW_LAYERS}`)),
  )
    .addHelpText('after', EXAMPLES)
    .action((files: string[], flags: CompareFlags) => runCompare(io, files, flags))
}

function runCompare(io: CliIo, files: readonly string[], flags: CompareFlags): void {
  const given = planInput('compare', files, flags)
  const report = withProgress(io, progress =>
    compareReport(given.input, {
      clock,
      progress,
      ...(flags.expertBytes === undefined ? {} : { expertBytes: flags.expertBytes }),
      ...(flags.algorithm === undefined ? {} : { algorithms: flags.algorithm }),
    }),
  )
  writePictures(io, flags, {
    html: () => comparePage(given, report),
    svg: () => compareCharts(report).overview(SVG_WIDTH),
  })
  const data = { files: given.load.files, notes: given.notes, ...report }
  printReport(io, flags.json === true, data, () => compareText(io, given, report, flags.perLayer === true))
}

function compareText(io: CliIo, given: PlanInput, report: CompareReport, perLayer: boolean): string {
  const style = terminalStyle(io)
  const { before, sizes } = report
  let text = `load     ${describeLoad(given.load, given.counts)}\n`
  text += `cluster  ${describeCluster(sizes)}\n`
  for (const note of given.notes) text += `note     ${note}\n`
  text += `before   ${four(before.balancedness)} balancedness (${report.beforeIs} placement), peak ${four(before.peakOverBound)} × its lower bound\n`
  const plain = withoutRedundantText(sizes, report.withoutRedundant)
  text += plain === '' ? '\n' : `         ${plain}\n\n`
  text += fittingTable(COMPARE_HEAD, report.rows.map(compareCells), style.width)
  for (const row of report.rows) {
    if (row.refused !== null)
      text += `\n${row.algorithm} ${row.refused.code}: ${row.refused.message}\n  fix: ${row.refused.remedy}\n`
  }
  const planned = report.rows.filter(row => row.after !== null)
  const label = Math.max(6, ...planned.map(row => row.algorithm.length))
  const room = Math.max(10, Math.min(50, style.width - label - 12))
  const bar = (name: string, value: number) => `${name.padEnd(label)}  ${terminalBar(value, 1, room)} ${four(value)}\n`
  text += `\nbalancedness\n${bar('before', before.balancedness)}${planned.map(row => bar(row.algorithm, row.after!.balancedness)).join('')}`
  if (perLayer || sizes.layers <= FEW_LAYERS) text += `\n${layerTable(report, style.width)}`
  return `${text}\nbest: ${report.best}\n`
}

/** Balancedness of every loaded layer, before and under each algorithm. */
function layerTable(report: CompareReport, width: number): string {
  const planned = report.rows.filter(row => row.after !== null)
  const rows = [...report.before.meanPerLayer.keys()]
    .filter(l => report.before.meanPerLayer[l]! > 0)
    .map(l => [
      String(l),
      four(report.before.balancednessPerLayer[l]!),
      ...planned.map(row => four(row.after!.balancednessPerLayer[l]!)),
    ])
  const short = (name: string) =>
    name.replace('elasticity_aware', 'elastic').replace('hierarchical', 'hier').replace('deepseek_', 'ds_')
  return fittingTable(['layer', 'before', ...planned.map(row => short(row.algorithm))], rows, width)
}
