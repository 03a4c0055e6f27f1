// `switchyard explain DIR`: what the model and the flags come to, before anything is allocated: sizes, limits, the program.
import { Command } from 'commander'
import { engineModule } from './engine.js'
import { addEngineFlags, takeEngineFlags } from './flag-options.js'
import type { CliIo } from './io.js'
import { printReport, readable } from './report.js'

export function explainCommand(io: CliIo): Command {
  return addEngineFlags(new Command('explain'))
    .option('--json', 'one JSON object on stdout and nothing else')
    .summary('show sizes, limits and the program of a step')
    .description(
      'Shows what a model and its flags come to, without loading weights: memory, limits, and the program of a step.',
    )
    .addHelpText(
      'after',
      `
Examples:
  switchyard explain models/demo
  switchyard explain models/demo --context-length 512 --max-running-requests 8 --json`,
    )
    .action(async (dir: string | undefined, options: Readonly<Record<string, unknown>>) => {
      const flags = takeEngineFlags('explain', dir, options)
      const report = (await engineModule()).explainModel(flags)
      printReport(io, options['json'] === true, report, () => {
        const { operations: _, programText, ...rest } = report
        return `${readable(rest)}program of a step\n${programText.map(line => `  ${line}`).join('\n')}\n`
      })
    })
}
