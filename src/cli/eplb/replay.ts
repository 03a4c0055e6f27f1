// `switchyard eplb replay`: a recorded load over time under several policies: when each would have rebalanced, what it
// would have cost and gained.

import { Command } from 'commander'
import { type AlgorithmName, type ReplayReport, replayReport } from '../../eplb/index.js'
import { terminalLines } from '../draw/index.js'
import type { CliIo } from '../io.js'
import { bytes, printReport, table } from '../report.js'
import { describeCluster, describeLoad } from './describe.js'
import { replayCharts, replayPage } from './html-replay.js'
import { type PlanInput, planInput } from './input.js'
import {
  addClusterFlags,
  addOutputFlags,
  algorithmList,
  type ClusterFlags,
  numberWithin,
  option,
  PLAN,
  wholeNumber,
} from './options.js'
import { clock, four, SVG_WIDTH, terminalStyle, whole, withProgress, writePictures } from './output.js'
import { featured, fittingTable, REPLAY_HEAD, replayCells, runName } from './rows.js'

type ReplayFlags = ClusterFlags & {
  readonly window: number
  readonly interval: number
  readonly policies?: AlgorithmName[]
  readonly thresholds?: number[]
}

const EXAMPLES = `
Examples:
  switchyard eplb replay dump.pt --gpus 8 --redundant 8
  switchyard eplb replay dump.pt --gpus 8 --redundant 8 --policies deepseek,switchyard --thresholds 1,0.9,0.8 --html replay.html

A policy looks at every --interval steps: where the mean balancedness of the last --window steps is below its threshold, it
plans from these steps and the new placement serves from the next step on. Threshold 1 rebalances at every look.
Two lines compare: the trivial placement (slot p holds expert p mod the number of experts), and one plan at the first look that is kept.`

export function replayCommand(io: CliIo): Command {
  const command = new Command('replay')
    .description('replay a recorded load over time under several rebalancing policies')
    .argument('<files...>', 'recorder dump with many steps (all ranks of it), JSON or .npy')
  addClusterFlags(command)
  return addOutputFlags(
    command
      .addOption(
        option(PLAN, '--window <steps>', 'steps a plan looks back', t => wholeNumber('--window', t, 1)).default(20),
      )
      .addOption(
        option(PLAN, '--interval <steps>', 'steps between two looks', t => wholeNumber('--interval', t, 1)).default(20),
      )
      .addOption(
        option(PLAN, '--policies <list>', 'algorithms to replay (default: deepseek,switchyard)', t =>
          algorithmList('--policies', t),
        ),
      )
      .addOption(
        option(PLAN, '--thresholds <list>', 'rebalance only below these balancednesses (default: 1)', t =>
          t.split(',').map(part => numberWithin('--thresholds', part, 0, 1)),
        ),
      ),
  )
    .addHelpText('after', EXAMPLES)
    .action((files: string[], flags: ReplayFlags) => runReplay(io, files, flags))
}

function runReplay(io: CliIo, files: readonly string[], flags: ReplayFlags): void {
  const given = planInput('replay', files, flags)
  const { steps } = given.counts
  const notes =
    steps > flags.interval
      ? given.notes
      : [...given.notes, `the recording is over (${steps} steps) before the first look: use a smaller --interval`]
  const { groups, lambda, linkWeight } = given.input
  const report = withProgress(io, progress =>
    replayReport(given.counts, given.cluster, {
      clock,
      progress,
      window: flags.window,
      interval: flags.interval,
      ...(flags.policies === undefined ? {} : { policies: flags.policies }),
      ...(flags.thresholds === undefined ? {} : { thresholds: flags.thresholds }),
      ...(groups === undefined ? {} : { groups }),
      ...(lambda === undefined ? {} : { lambda }),
      ...(linkWeight === undefined ? {} : { linkWeight }),
      ...(flags.expertBytes === undefined ? {} : { expertBytes: flags.expertBytes }),
    }),
  )
  writePictures(io, flags, {
    html: () => replayPage({ ...given, notes }, report),
    svg: () => replayCharts(report).overTime(SVG_WIDTH),
  })
  const data = { files: given.load.files, notes, ...report }
  printReport(io, flags.json === true, data, () => replayText(io, { ...given, notes }, report))
}

function replayText(io: CliIo, given: PlanInput, report: ReplayReport): string {
  const style = terminalStyle(io)
  const ran = report.runs.filter(run => run.refused === null)
  const all = ran.flatMap(run => run.balancedness)
  const low = all.reduce((a, b) => Math.min(a, b), 1)
  let text = `load     ${describeLoad(given.load, given.counts)}\n`
  text += `cluster  ${describeCluster(report.sizes)}\n`
  text += `looking  every ${report.interval} steps at the last ${report.window}\n`
  for (const note of given.notes) text += `note     ${note}\n`
  text += `\n${fittingTable(REPLAY_HEAD, report.runs.map(replayCells), style.width)}`
  for (const run of report.runs) if (run.refused !== null) text += `\n${runName(run)}: ${run.refused}\n`
  text += `\nbalancedness over time (${four(low)} to 1)\n${terminalLines(
    ran.map(run => ({ name: runName(run), values: run.balancedness })),
    style,
    low,
    1,
  )}`
  const shown = featured(report)
  if (shown !== undefined && shown.rebalances.length > 0) {
    const rows = shown.rebalances
      .slice(0, 20)
      .map(r => [
        String(r.step),
        four(r.before),
        four(r.planned),
        whole(r.moves),
        r.bytes === null ? '–' : bytes(r.bytes),
      ])
    const more = shown.rebalances.length - rows.length
    text += `\nrebalances of ${runName(shown)}\n${table(['after step', 'window before', 'planned', 'moves', 'bytes'], rows)}`
    if (more > 0) text += `… and ${more} more (--json has them all)\n`
  }
  return text
}
