// From anything thrown to two lines and an exit code: 0 fine, 1 something failed, 2 the user can fix it (flags, files,
// checkpoints). No stack traces unless DEBUG=switchyard asks for them.
import type { Command, CommanderError } from 'commander'
import { ConfigError } from '../config/config-errors.js'
import { SwitchyardError } from '../config/errors.js'
import { suggestion } from '../config/flag-spec.js'
import { REFUSED_FLAGS } from '../config/sglang-flags.js'
import { closest } from '../config/suggest.js'
import { synonymOf } from './flag-synonyms.js'
import { type CliIo, colors } from './io.js'

/** Of a process whose threads cannot be ended: it must be killed, and this is what a shell says of a killed one. */
export const STUCK_EXIT_CODE = 137

/** Prints `error CODE: message` and `fix: remedy`. @returns the exit code */
export function reportFailure(error: unknown, io: CliIo): number {
  const paint = colors(io, io.errIsTerminal)
  if (error instanceof SwitchyardError) {
    io.err(`${paint.red('error')} ${error.code}: ${error.message}\n`)
    if (error.remedy !== '') io.err(`${paint.green('fix')}: ${error.remedy}\n`)
  } else {
    const message = error instanceof Error ? error.message : String(error)
    io.err(`${paint.red('error')} SY_INTERNAL: ${message}\n`)
    io.err(
      `${paint.green('fix')}: this is a bug in Switchyard; run again with DEBUG=switchyard and report what it prints\n`,
    )
  }
  if (io.env['DEBUG'] === 'switchyard' && error instanceof Error) {
    io.err(`${error.stack ?? ''}\n${error.cause === undefined ? '' : `cause: ${String(error.cause)}\n`}`)
  }
  if (!(error instanceof SwitchyardError)) return 1
  return error.code === 'SY_RANK_STUCK' ? STUCK_EXIT_CODE : error.status < 500 ? 2 : 1
}

/**
 * Commander's complaints in our words.
 * @param command the command that was being parsed
 * @param args the whole command line
 */
export function asConfigError(error: CommanderError, command: Command, args: readonly string[]): ConfigError {
  const quoted = /'([^']*)'/.exec(error.message)?.[1] ?? ''
  const name = fullName(command)
  switch (error.code) {
    case 'commander.unknownOption':
      return unknownFlags(quoted, command, args)
    case 'commander.unknownCommand': {
      const near = closest(
        quoted,
        command.commands.map(c => c.name()),
      )
      return new ConfigError('SY_CONFIG_UNKNOWN_COMMAND', {
        command: quoted,
        suggestion: near === null ? `see ${name} --help for the commands there are` : `did you mean ${name} ${near}?`,
      })
    }
    case 'commander.optionMissingArgument': {
      const flag = quoted.replace(/^.*?(--[\w-]+).*$/, '$1')
      return new ConfigError('SY_CONFIG_MISSING_VALUE', { flag, expected: 'its value' })
    }
    case 'commander.missingArgument':
      return new ConfigError('SY_CONFIG_MISSING_ARGUMENT', {
        command: name,
        argument: quoted === '' ? 'an argument' : quoted,
        example: `see ${name} --help`,
      })
    case 'commander.excessArguments': {
      const words = command.args
      return new ConfigError('SY_CONFIG_EXTRA_ARGUMENT', { command: name, argument: words.at(-1) ?? '' })
    }
    default:
      return new ConfigError('SY_CONFIG_BAD_VALUE', {
        flag: quoted || name,
        value: 'not usable',
        expected: error.message.replace(/^error: /, ''),
        suggestion: '',
      })
  }
}

/** Commander stops at the first flag it does not know; whoever pastes a long command line wants to hear of all. */
function unknownFlags(first: string, command: Command, args: readonly string[]): ConfigError {
  const known = new Map(command.options.flatMap(o => [o.long, o.short].map(name => [name, o] as const)))
  const unknown = new Set([first])
  for (let i = 0; i < args.length && args[i] !== '--'; i++) {
    const [name, value] = args[i]!.split('=', 2)
    const option = known.get(name)
    if (option?.required && value === undefined) i++
    else if (option === undefined && /^--?[a-z]/i.test(name!) && !/^(-h|--help)$/.test(name!)) unknown.add(args[i]!)
  }
  const flags = [...unknown]
  const advice = (flag: string) => adviceFor(flag.split('=')[0]!.replace(/^-+/, ''), flagNames(command))
  if (flags.length === 1) return new ConfigError('SY_CONFIG_UNKNOWN_FLAG', { flag: first, suggestion: advice(first) })
  return new ConfigError('SY_CONFIG_UNKNOWN_FLAGS', {
    flags: flags.join(', '),
    suggestions: flags.map(flag => `${flag.split('=')[0]}: ${advice(flag)}`).join('\n     '),
  })
}

/** @param typed name without dashes */
function adviceFor(typed: string, flags: readonly string[]): string {
  const synonym = synonymOf(typed, flags)
  if (synonym === null && Object.hasOwn(REFUSED_FLAGS, typed)) return REFUSED_FLAGS[typed]!
  return suggestion(synonym ?? closest(typed, flags), '--')
}

function fullName(command: Command): string {
  return command.parent === null ? command.name() : `${fullName(command.parent)} ${command.name()}`
}

const flagNames = (command: Command): string[] =>
  [...command.options, ...(command.parent?.options ?? [])].flatMap(o =>
    o.long === undefined || o.long === null || o.hidden ? [] : [o.long.slice(2)],
  )
