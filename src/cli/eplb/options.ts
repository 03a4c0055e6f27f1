// Flags of the eplb commands: parsing to checked values, so that commands see numbers and lists only.
// Every refusal is a ConfigError that names the flag. Not here: whether sizes fit each other (eplb decides that).

import { type Command, Option } from 'commander'
import { ConfigError } from '../../config/config-errors.js'
import { closest } from '../../config/suggest.js'
import type { AlgorithmChoice, AlgorithmName } from '../../eplb/index.js'
import { algorithmChoices, DEFAULT_LAMBDA, DEFAULT_LINK_WEIGHT } from '../../eplb/index.js'

function badValue(flag: string, value: string, expected: string, suggestion = ''): ConfigError {
  return new ConfigError('SY_CONFIG_BAD_VALUE', { flag, value: value === '' ? 'empty' : value, expected, suggestion })
}

/** A whole number of at least `least`. @throws ConfigError */
export function wholeNumber(flag: string, text: string, least: number): number {
  const value = /^\d+$/.test(text.trim()) ? Number(text) : Number.NaN
  if (!Number.isSafeInteger(value) || value < least) throw badValue(flag, text, `a whole number of at least ${least}`)
  return value
}

/** A finite number in [low, high]. @throws ConfigError */
export function numberWithin(flag: string, text: string, low: number, high = Infinity): number {
  const value = text.trim() === '' ? Number.NaN : Number(text)
  if (!(value >= low && value <= high) || !Number.isFinite(value)) {
    throw badValue(flag, text, high === Infinity ? `a number of at least ${low}` : `a number from ${low} to ${high}`)
  }
  return value
}

/** Lists are cut here; what takes them refuses far shorter ones. */
const MOST_ENTRIES = 100_000

/** 8,8,4 → [8, 8, 4]; "8x3" is 8,8,8. @throws ConfigError */
export function wholeList(flag: string, text: string, least: number): number[] {
  return text.split(',').flatMap(part => {
    const [value, times, more] = part.split('x')
    if (more !== undefined) throw badValue(flag, text, 'a list such as 8,8,4 or 8x6,4x2')
    const n = wholeNumber(flag, value!, least)
    return new Array<number>(times === undefined ? 1 : Math.min(wholeNumber(flag, times, 1), MOST_ENTRIES)).fill(n)
  })
}

const UNITS: Readonly<Record<string, number>> = {
  '': 1,
  b: 1,
  k: 1e3,
  kb: 1e3,
  kib: 1024,
  m: 1e6,
  mb: 1e6,
  mib: 1024 ** 2,
  g: 1e9,
  gb: 1e9,
  gib: 1024 ** 3,
}

/** 44MB, 44e6, 42MiB, 1.5g → bytes. @throws ConfigError */
function byteCount(flag: string, text: string): number {
  const match = /^([\d.]+(?:e\d+)?)\s*([a-z]*)$/i.exec(text.trim())
  const unit = UNITS[match?.[2]?.toLowerCase() ?? '?']
  const value = Number(match?.[1])
  if (match === null || unit === undefined || !(value > 0 && value * unit <= Number.MAX_SAFE_INTEGER))
    throw badValue(flag, text, 'a size such as 44MB, 42MiB or 44000000')
  return Math.round(value * unit)
}

/** A path to write to, with one of `endings` if there are any. @throws ConfigError */
function outputFile(flag: string, text: string, ...endings: string[]): string {
  if (text.trim() === '') throw badValue(flag, text, 'the path of a file to write')
  if (endings.length > 0 && !endings.some(ending => text.endsWith(ending)))
    throw badValue(flag, text, `a name that ends in ${endings.join(' or ')}`)
  return text
}

/** @throws ConfigError with the nearest name */
export function algorithmChoice(flag: string, text: string): AlgorithmChoice {
  const names = algorithmChoices().map(a => a.name)
  const found = names.find(name => name === text)
  if (found !== undefined) return found
  const near = closest(text, names)
  throw badValue(flag, text, `one of ${names.join(', ')}`, near === null ? '' : `; did you mean ${near}?`)
}

/** A list of algorithms by name, without auto. @throws ConfigError */
export function algorithmList(flag: string, text: string): AlgorithmName[] {
  return text.split(',').map(name => {
    const choice = algorithmChoice(flag, name.trim())
    if (choice === 'auto') throw badValue(flag, text, 'algorithms by name; auto is none of its own')
    return choice
  })
}

/** Flags of plan, compare and replay. */
export interface ClusterFlags {
  readonly gpus?: number
  readonly nodes: number
  readonly redundant?: number
  readonly slots?: number[]
  readonly dead?: number[]
  readonly groups?: number
  readonly current?: string
  readonly lambda?: number
  readonly linkWeight?: number
  readonly expertBytes?: number
  readonly last?: number
  readonly json?: boolean
  readonly html?: string
  readonly svg?: string
}

const CLUSTER = 'Cluster:'
const PLAN = 'Planning:'
const OUTPUT = 'Output:'

const option = <T>(group: string, flags: string, help: string, parse?: (text: string) => T): Option => {
  const made = new Option(flags, help).helpGroup(group)
  return parse === undefined ? made : made.argParser(parse)
}

export function addClusterFlags(command: Command): Command {
  return command
    .addOption(
      option(CLUSTER, '--gpus <n>', 'GPUs that share the experts (SGLang: --ep-size)', t =>
        wholeNumber('--gpus', t, 1),
      ),
    )
    .addOption(
      option(CLUSTER, '--nodes <n>', 'nodes the GPUs are in, equally many in each', t =>
        wholeNumber('--nodes', t, 1),
      ).default(1),
    )
    .addOption(
      option(CLUSTER, '--redundant <n>', 'redundant experts (SGLang: --ep-num-redundant-experts); default 0', t =>
        wholeNumber('--redundant', t, 0),
      ),
    )
    .addOption(
      option(CLUSTER, '--slots <list>', 'slots of each GPU where they differ: 8,8,4 or 8x6,4x2', t =>
        wholeList('--slots', t, 0),
      ),
    )
    .addOption(option(CLUSTER, '--dead <list>', 'GPUs that are down, from 0: 3,7', t => wholeList('--dead', t, 0)))
    .addOption(
      option(CLUSTER, '--groups <n>', 'expert groups of group-limited routing (n_group in config.json)', t =>
        wholeNumber('--groups', t, 1),
      ),
    )
    .addOption(
      option(CLUSTER, '--expert-bytes <size>', 'bytes of one expert of one layer, to price moves: 44MB', t =>
        byteCount('--expert-bytes', t),
      ),
    )
    .addOption(
      option(
        PLAN,
        '--lambda <x>',
        `price of moving experts; 0 = best balance whatever it costs (default: ${DEFAULT_LAMBDA})`,
        t => numberWithin('--lambda', t, 0),
      ),
    )
    .addOption(
      option(
        PLAN,
        '--link-weight <x>',
        `price of traffic between nodes beside that of moves (default: ${DEFAULT_LINK_WEIGHT})`,
        t => numberWithin('--link-weight', t, 0),
      ),
    )
    .addOption(
      option(PLAN, '--last <steps>', 'plan from the last steps of the recording only', t =>
        wholeNumber('--last', t, 1),
      ),
    )
}

export function addCurrentFlag(command: Command): Command {
  return command.addOption(
    option(
      PLAN,
      '--current <placement>',
      'placement in effect: .json, .pt, inline JSON, or trivial; default: the one in the dump',
    ),
  )
}

export function addOutputFlags(command: Command): Command {
  return command
    .addOption(
      option(OUTPUT, '--html <file>', 'write the report as one self-contained HTML file', t => outputFile('--html', t)),
    )
    .addOption(option(OUTPUT, '--svg <file>', 'write the main chart as an SVG file', t => outputFile('--svg', t)))
    .addOption(option(OUTPUT, '--json', 'print the report as JSON, nothing else, on stdout'))
}

export { OUTPUT, option, outputFile, PLAN }
