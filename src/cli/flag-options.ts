// Puts a flag table on a command and takes the checked values back. The table alone decides names, help and defaults.
import { type Command, Option } from 'commander'
import { ConfigError } from '../config/config-errors.js'
import type { FlagSpec, FlagTable, FlagValues } from '../config/flag-spec.js'
import { resolveFlags } from '../config/flag-spec.js'
import { ENGINE_FLAGS, type EngineFlags } from '../config/flags.js'
import { IGNORED_FLAGS } from '../config/sglang-flags.js'
import type { CliIo } from './io.js'

const PLACEHOLDER: Readonly<Record<FlagSpec['type'], string>> = {
  string: ' <text>',
  choice: ' <name>',
  integer: ' <n>',
  number: ' <x>',
  json: ' <json>',
  boolean: '',
}

function describe(flag: FlagSpec): string {
  const facts = [
    flag.type === 'choice' ? flag.choices.join('|') : '',
    flag.default !== null
      ? `default: ${String(flag.default)}${'defaultOnGpu' in flag ? `, on GPUs ${flag.defaultOnGpu}` : ''}`
      : flag.defaultHelp !== undefined
        ? `default: ${flag.defaultHelp}`
        : '',
    flag.env === undefined ? '' : `env: ${flag.env}`,
  ].filter(fact => fact !== '')
  return facts.length === 0 ? flag.help : `${flag.help} (${facts.join('; ')})`
}

export function addFlags(command: Command, table: FlagTable): Command {
  for (const flag of Object.values(table)) {
    command.addOption(new Option(`--${flag.name}${PLACEHOLDER[flag.type]}`, describe(flag)).helpGroup(`${flag.group}:`))
  }
  return command
}

/** The values of `table` among the options a command was given. @throws ConfigError */
export function takeFlags<T extends FlagTable>(
  table: T,
  options: Readonly<Record<string, unknown>>,
  env: Readonly<Record<string, string | undefined>> = {},
): FlagValues<T> {
  const given = Object.fromEntries(Object.keys(table).map(key => [key, options[key]]))
  return resolveFlags(table, given as Parameters<typeof resolveFlags<T>>[1], env)
}

/** DIR, then every engine flag: the common part of serve, generate, logits, explain and bench engine. */
export function addEngineFlags(command: Command): Command {
  addFlags(command.argument('[dir]', 'directory of a Hugging Face checkpoint'), ENGINE_FLAGS)
  for (const [name, { value }] of Object.entries(IGNORED_FLAGS))
    command.addOption(new Option(`--${name}${value ? ' <value>' : ''}`).hideHelp())
  return command
}

/** Says of each ignored flag of SGLang's that was given why it has no effect. */
export function noteIgnoredFlags(command: Command, io: CliIo): void {
  for (const option of command.options) {
    const flag = IGNORED_FLAGS[option.name()]
    if (option.hidden && flag !== undefined && command.getOptionValueSource(option.attributeName()) === 'cli')
      io.err(`note: --${option.name()} has no effect here: ${flag.why}\n`)
  }
}

/** Engine flags of a command that has them all. The model is DIR or --model-path. @throws ConfigError */
export function takeEngineFlags(
  command: string,
  dir: string | undefined,
  options: Readonly<Record<string, unknown>>,
): EngineFlags {
  const named = options['modelPath']
  if (dir !== undefined && named !== undefined && named !== dir) {
    throw new ConfigError('SY_CONFIG_CONFLICT', {
      first: `the directory ${dir}`,
      second: `--model-path ${String(named)}`,
    })
  }
  const modelPath = dir ?? named
  if (modelPath === undefined)
    throw new ConfigError('SY_CONFIG_NO_MODEL', { example: `switchyard ${command} models/demo` })
  return takeFlags(ENGINE_FLAGS, { ...options, modelPath })
}
