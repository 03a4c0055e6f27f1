// `switchyard logits DIR`: the raw logits of every position of a prompt, as safetensors, for comparing implementations.
import { Command, Option } from 'commander'
import { ConfigError } from '../config/config-errors.js'
import { engineModule, startWithProgress } from './engine.js'
import { addEngineFlags, takeEngineFlags } from './flag-options.js'
import type { CliIo } from './io.js'
import { addPromptOptions, promptIds, takePrompt } from './prompt-options.js'
import { printReport, readable } from './report.js'

export function logitsCommand(io: CliIo): Command {
  return addPromptOptions(addEngineFlags(new Command('logits')))
    .addOption(
      new Option('--out <file>', 'safetensors file to write: tensor "logits", f32 [tokens, vocabulary]').helpGroup(
        'Output:',
      ),
    )
    .option('--json', 'one JSON object on stdout and nothing else')
    .summary('write the logits of every position')
    .description('Runs a prompt once and writes the logits of every position to a safetensors file.')
    .addHelpText(
      'after',
      `
Examples:
  switchyard logits models/demo --input-ids 0,742,934 --out logits.safetensors --dtype float32`,
    )
    .action(async (dir: string | undefined, options: Readonly<Record<string, unknown>>) => {
      const flags = takeEngineFlags('logits', dir, options)
      const prompt = takePrompt('switchyard logits', options)
      const file = options['out'] as string | undefined
      if (file === undefined) {
        throw new ConfigError('SY_CONFIG_MISSING_ARGUMENT', {
          command: 'switchyard logits',
          argument: 'a file to write',
          example: 'name it with --out logits.safetensors',
        })
      }
      const { writeSafetensors } = await import('../formats/safetensors/index.js')
      const { startEngine } = await engineModule()
      const engine = await startWithProgress(io, startEngine, flags)
      try {
        const ids = promptIds(engine, prompt)
        const logits = await engine.logits(ids)
        const shape = [ids.length, engine.vocabSize]
        writeSafetensors(file, new Map([['logits', { dtype: 'F32', shape, data: logits }]]))
        const report = { file, tensor: 'logits', dtype: 'F32', shape }
        printReport(io, options['json'] === true, report, () => readable(report))
      } finally {
        await engine.close(0)
      }
    })
}
