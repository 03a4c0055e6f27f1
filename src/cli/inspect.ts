// `switchyard inspect DIR`: what a checkpoint holds, from its config and headers alone.
import { Command, Option } from 'commander'
import { ConfigError } from '../config/config-errors.js'
import { ENGINE_FLAGS } from '../config/flags.js'
import { takeFlags } from './flag-options.js'
import type { CliIo } from './io.js'
import { printReport, readable } from './report.js'

const { jsonModelOverrideArgs } = ENGINE_FLAGS

export function inspectCommand(io: CliIo): Command {
  return new Command('inspect')
    .argument('[dir]', 'directory of a Hugging Face checkpoint')
    .addOption(new Option(`--${jsonModelOverrideArgs.name} <json>`, jsonModelOverrideArgs.help))
    .option('--json', 'one JSON object on stdout and nothing else')
    .summary('show what a checkpoint holds')
    .description(
      'Shows what a checkpoint holds, from its config and headers alone: architecture, parameters, bytes, tokenizer.',
    )
    .addHelpText('after', '\nExamples:\n  switchyard inspect models/demo\n  switchyard inspect models/demo --json')
    .action(async (dir: string | undefined, options: Readonly<Record<string, unknown>>) => {
      if (dir === undefined) throw new ConfigError('SY_CONFIG_NO_MODEL', { example: 'switchyard inspect models/demo' })
      const { inspectCheckpoint } = await import('../formats/inspect/index.js')
      const overrides = takeFlags({ jsonModelOverrideArgs }, options).jsonModelOverrideArgs ?? undefined
      const report = inspectCheckpoint(dir, overrides)
      printReport(io, options['json'] === true, report, () => readable({ ...report }))
    })
}
