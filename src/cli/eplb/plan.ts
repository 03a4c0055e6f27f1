// `switchyard eplb plan`: one placement from a recorded load, written as SGLang reads it.

import { Command } from 'commander'
import { algorithmChoices, type PlanReport, planReport } from '../../eplb/index.js'
import { writePlacement } from '../../formats/expert-load/index.js'
import { terminalHeatMap } from '../draw/index.js'
import type { CliIo } from '../io.js'
import { printReport, table } from '../report.js'
import {
  crossingText,
  describeCluster,
  describeLoad,
  movesText,
  peakText,
  withoutRedundantText,
  worstText,
} from './describe.js'
import { planCharts, planPage } from './html-plan.js'
import { type PlanInput, planInput } from './input.js'
import {
  addClusterFlags,
  addCurrentFlag,
  addOutputFlags,
  algorithmChoice,
  type ClusterFlags,
  OUTPUT,
  option,
  outputFile,
  PLAN,
} from './options.js'
import { clock, four, milliseconds, SVG_WIDTH, terminalStyle, withProgress, writePictures } from './output.js'
import { launchFlags } from './rows.js'

const EXAMPLES = `
Examples:
  switchyard eplb plan dump.pt --gpus 32 --nodes 4 --redundant 32 --out placement.json
  switchyard eplb plan dump_*.pt --gpus 16 --redundant 16 --groups 8 --algorithm deepseek_hierarchical
  switchyard eplb plan dump.pt --gpus 32 --redundant 32 --current placement.json --expert-bytes 44MB --html plan.html
  switchyard eplb plan dump.pt --slots 8x6,4x2 --dead 3 --json

Files may be recorder dumps (.pt; give the files of all ranks), JSON or .npy. --out is what --init-expert-location reads.`

export function planCommand(io: CliIo): Command {
  const command = new Command('plan')
    .description('plan where experts go, from a recorded expert load')
    .argument('<files...>', 'recorder dump (all ranks of it), JSON or .npy')
  addClusterFlags(command)
  return addOutputFlags(
    addCurrentFlag(command)
      .addOption(
        option(
          PLAN,
          '--algorithm <name>',
          `${algorithmChoices()
            .map(a => a.name)
            .join(', ')}`,
          t => algorithmChoice('--algorithm', t),
        ).default('switchyard'),
      )
      .addOption(
        option(OUTPUT, '--out <file>', 'write the placement: one-key JSON for --init-expert-location, or .pt', t =>
          // SGLang goes by the ending, too.
          outputFile('--out', t, '.json', '.pt'),
        ),
      ),
  )
    .addHelpText(
      'after',
      `\nAlgorithms:\n${algorithmChoices()
        .map(a => `  ${a.name.padEnd(30)} ${a.summary}`)
        .join('\n')}\n${EXAMPLES}`,
    )
    .action((files: string[], flags: ClusterFlags & { algorithm: string; out?: string }) => runPlan(io, files, flags))
}

function runPlan(io: CliIo, files: readonly string[], flags: ClusterFlags & { algorithm: string; out?: string }): void {
  const given = planInput('plan', files, flags)
  const { report, placement } = withProgress(io, progress =>
    planReport(given.input, {
      algorithm: algorithmChoice('--algorithm', flags.algorithm),
      clock,
      progress,
      ...(flags.expertBytes === undefined ? {} : { expertBytes: flags.expertBytes }),
    }),
  )
  if (flags.out !== undefined) {
    writePlacement(flags.out, placement)
    io.err(`wrote ${flags.out}\n`)
  }
  writePictures(io, flags, {
    html: () => planPage(given, report, flags.out),
    svg: () => planCharts(report).perLayer(SVG_WIDTH),
  })
  const data = { files: given.load.files, notes: given.notes, ...report }
  printReport(io, flags.json === true, data, () => planText(io, given, report, flags.out))
}

function planText(io: CliIo, given: PlanInput, report: PlanReport, out: string | undefined): string {
  const style = terminalStyle(io)
  const { before, after, sizes } = report
  const overBound = (q: typeof before) => `${four(q.peakOverBound)} ×`
  let text = `load       ${describeLoad(given.load, given.counts)}\n`
  text += `cluster    ${describeCluster(sizes)}\n`
  text += `algorithm  ${report.algorithm}${report.asked === report.algorithm ? '' : ` (${report.asked})`}, ${milliseconds(report.milliseconds)}${report.algorithm === 'switchyard' ? `, λ ${report.lambda}` : ''}\n`
  for (const note of given.notes) text += `note       ${note}\n`
  text += `\n${table(
    ['', `before (${report.beforeIs})`, 'after'],
    [
      ['balancedness, mean over layers', four(before.balancedness), four(after.balancedness)],
      ['least balanced layer', worstText(before), worstText(after)],
      ['peak over its lower bound', overBound(before), overBound(after)],
      ['furthest from it, in tokens', peakText(before), peakText(after)],
    ],
  )}`
  const plain = withoutRedundantText(sizes, report.withoutRedundant)
  if (report.moves !== null || sizes.nodes > 1 || plain !== '') text += '\n'
  if (plain !== '') text += `${plain}\n`
  if (report.moves !== null) text += `moves from the current placement: ${movesText(report.moves)}\n`
  if (sizes.nodes > 1) text += `traffic that crosses nodes: ${crossingText(report.links.crossing)} of routed tokens\n`
  text += `\nload per GPU before\n${terminalHeatMap(before.gpuLoad, style, 'layer')}`
  text += `\nload per GPU after\n${terminalHeatMap(after.gpuLoad, style, 'layer')}`
  text += `\n${nextStep(report, out)}`
  return text
}

function nextStep(report: PlanReport, out: string | undefined): string {
  if (out === undefined) return 'Write it for SGLang with --out placement.json.\n'
  return `Start SGLang with\n  ${launchFlags(report, out)}\n`
}
