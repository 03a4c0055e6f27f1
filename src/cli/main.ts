// The command line: which commands there are, and what happens to anything they throw. One file a command; each gets its
// output and signals passed in, so that `run` can be called by tests in the same process.
import { Command, CommanderError } from 'commander'
import { benchEngineCommand } from './bench/engine.js'
import { benchEpCommand } from './bench/ep.js'
import { benchKernelsCommand } from './bench/kernels-cuda.js'
import { benchServeCommand } from './bench/serve/command.js'
import { doctorCommand } from './doctor.js'
import { eplbCommand } from './eplb/index.js'
import { explainCommand } from './explain.js'
import { asConfigError, reportFailure, STUCK_EXIT_CODE } from './failure.js'
import { noteIgnoredFlags } from './flag-options.js'
import { generateCommand } from './generate.js'
import { inspectCommand } from './inspect.js'
import { type CliIo, processIo } from './io.js'
import { logitsCommand } from './logits.js'
import { serveCommand } from './serve.js'
import { traceCommand } from './trace.js'
import { version } from './version.js'

const RUN = 'Run a model:'
const PLAN = 'Plan a cluster:'
const LOOK = 'Look at a model or this machine:'

/** The whole program. `exit` takes the code of commands that end otherwise than with 0. */
export function createProgram(io: CliIo, exit: (code: number) => void): Command {
  const program = new Command('switchyard')
    .description('Serves Mixture-of-Experts language models, and plans their clusters.')
    .version(version, '-V, --version', 'print the version')
    .helpOption('-h, --help', 'show this help')
    .helpCommand('help [command]', 'show the help of a command')
    .commandsGroup('Help:')
    .addHelpText(
      'after',
      `
Examples:
  switchyard serve models/demo
  switchyard generate models/demo --prompt "Once upon a time"
  switchyard eplb plan dump.pt --gpus 8 --redundant 8 --out placement.json
  switchyard COMMAND --help

Exit codes: 0 done, 1 something failed, 2 something in the command, a file or a checkpoint must be changed.`,
    )
  program.hook('preAction', (_, command) => noteIgnoredFlags(command, io))
  const bench = new Command('bench')
    .description('Measures speed; see switchyard bench engine --help and switchyard bench serve --help.')
    .summary('measure speed')
  bench.addCommand(benchEngineCommand(io))
  bench.addCommand(benchServeCommand(io))
  bench.addCommand(benchEpCommand(io))
  bench.addCommand(benchKernelsCommand(io))
  const add = (group: string, command: Command) => program.addCommand(command.helpGroup(group))
  add(RUN, serveCommand(io, exit))
  add(RUN, generateCommand(io))
  add(RUN, logitsCommand(io))
  add(PLAN, eplbCommand(io))
  add(LOOK, explainCommand(io))
  add(LOOK, inspectCommand(io))
  add(LOOK, traceCommand(io))
  add(LOOK, doctorCommand(io, exit))
  add(LOOK, bench)
  return program
}

/** Runs one command line (without node and script). @returns the exit code */
export async function run(args: readonly string[], io: CliIo): Promise<number> {
  let code = 0
  const program = createProgram(io, value => {
    code = value
  })
  let failed: Command = program
  settle(program, io, command => {
    failed = command
  })
  try {
    await program.parseAsync([...args], { from: 'user' })
    return code
  } catch (error) {
    if (!(error instanceof CommanderError)) return reportFailure(error, io)
    if (error.code === 'commander.help') failed.outputHelp()
    return error.exitCode === 0 || error.code === 'commander.help'
      ? 0
      : reportFailure(asConfigError(error, failed, args), io)
  }
}

/** Output, colour and errors of commander, for every command of the tree. */
function settle(command: Command, io: CliIo, onError: (command: Command) => void): void {
  command
    .exitOverride(error => {
      onError(command)
      throw error
    })
    .configureOutput({
      writeOut: text => io.out(text),
      writeErr: () => {},
      getOutHelpWidth: () => Math.min(120, io.columns),
    })
    .showSuggestionAfterError(false)
    .allowExcessArguments(false)
  for (const child of command.commands) settle(child, io, onError)
}

/** The binary's entry. */
export async function main(argv: string[]): Promise<void> {
  const code = await run(argv.slice(2), processIo())
  // An exit waits for every thread, and one of them will not come.
  if (code === STUCK_EXIT_CODE) process.kill(process.pid, 'SIGKILL')
  process.exitCode = code
  // Everything is closed by now; whatever still holds the loop must not hold the user.
  setTimeout(() => process.exit(code), 2000).unref()
}
