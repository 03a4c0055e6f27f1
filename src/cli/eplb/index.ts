// `switchyard eplb …`: plan and judge placements of experts from recorded loads.

import { Command } from 'commander'
import { type CliIo, processIo } from '../io.js'
import { compareCommand } from './compare.js'
import { inspectCommand } from './inspect.js'
import { planCommand } from './plan.js'
import { replayCommand } from './replay.js'
import { sweepCommand } from './sweep.js'

/** The command with its five subcommands; errors are thrown to whoever parses. */
export function eplbCommand(io: CliIo = processIo()): Command {
  const command = new Command('eplb').description(
    'balance experts over GPUs from a recorded expert load (SGLang, vLLM)',
  )
  for (const make of [planCommand, inspectCommand, compareCommand, replayCommand, sweepCommand])
    command.addCommand(make(io))
  return command.addHelpText(
    'after',
    `
Examples:
  switchyard eplb inspect dump.pt --gpus 8
  switchyard eplb plan dump.pt --gpus 8 --redundant 8 --out placement.json
  switchyard eplb compare dump.pt --gpus 8 --redundant 8 --html compare.html

Guide: docs/eplb-quickstart.md`,
  )
}
