// Writes docs/flags.md from the flag tables of src/config/flags.ts. `--check` changes nothing and fails when the page is
// stale. Run `npm run build` first.
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'

const root = fileURLToPath(new URL('..', import.meta.url))
export const FLAGS_PAGE = join(root, 'docs', 'flags.md')

const escaped = text => text.replace(/[|<>*]/g, '\\$&')

const defaultOf = flag => {
  const onGpu = flag.defaultOnGpu === undefined ? '' : `, on GPUs \`${flag.defaultOnGpu}\``
  if (flag.default !== null) return `\`${String(flag.default)}\`${onGpu}`
  return flag.defaultHelp === undefined ? 'none' : escaped(flag.defaultHelp)
}

/** Values that are refused by name, one line for each reason. */
function refusals(flags) {
  const lines = []
  for (const flag of flags) {
    const byReason = new Map()
    for (const [value, reason] of Object.entries(flag.refused ?? {}))
      byReason.set(reason, [...(byReason.get(reason) ?? []), `\`${value}\``])
    for (const [reason, values] of byReason)
      lines.push(`- \`--${flag.name}\` refuses ${values.join(', ')}: ${escaped(reason)}.`)
  }
  return lines
}

/**
 * The page as Markdown.
 * @param tables [{title, intro, table}]
 * @param expectation words for what a flag takes (config/flag-spec.ts)
 * @param foreign the lists of config/sglang-flags.ts
 */
export function renderFlags(tables, expectation, foreign) {
  const lines = ['# Flags', '', '<!-- Written by scripts/flags-doc.mjs from src/config/flags.ts. Do not edit. -->', '']
  lines.push(
    "Names are SGLang's wherever SGLang has the flag. In code the same flags are camel-cased keys (`--tp-size` is `tpSize`). A flag",
    'may be given as `--flag value` or `--flag=value`; the last one wins. A value out of range, an unknown flag or a value',
    'that is not built yet is an error before anything is loaded, with what would work.',
  )
  for (const { title, intro, table } of tables) {
    lines.push('', `## ${title}`, '', intro)
    const groups = new Map()
    for (const flag of Object.values(table)) groups.set(flag.group, [...(groups.get(flag.group) ?? []), flag])
    for (const [group, flags] of groups) {
      if (groups.size > 1) lines.push('', `### ${group}`)
      lines.push('', '| flag | takes | default | meaning |', '|---|---|---|---|')
      for (const flag of flags) {
        const takes = flag.type === 'boolean' ? 'nothing' : escaped(expectation(flag))
        const env = flag.env === undefined ? '' : ` (environment: \`${flag.env}\`)`
        lines.push(`| \`--${flag.name}\` | ${takes} | ${defaultOf(flag)}${env} | ${escaped(flag.help)} |`)
      }
      const refused = refusals(flags)
      if (refused.length > 0) lines.push('', ...refused)
    }
  }
  lines.push(
    '',
    '## Flags of SGLang that are no flags here',
    '',
    'These are accepted where engine flags are, so that a command line written for SGLang can be pasted. They have no effect, and a note on',
    'stderr says so:',
    '',
    ...foreignList(Object.entries(foreign.IGNORED_FLAGS).map(([name, { why }]) => [name, why])),
    '',
    'These are errors like every unknown flag, and one error names all that a command line has:',
    '',
    ...foreignList(Object.entries(foreign.REFUSED_FLAGS)),
  )
  return `${lines.join('\n')}\n`
}

/** One line for each reason. @param flags [name, reason] */
function foreignList(flags) {
  const byReason = new Map()
  for (const [name, why] of flags) byReason.set(why, [...(byReason.get(why) ?? []), `\`--${name}\``])
  return [...byReason].map(([why, names]) => `- ${names.join(', ')}: ${escaped(why)}.`)
}

export const TABLES = [
  {
    title: 'Engine',
    key: 'ENGINE_FLAGS',
    intro: 'Taken by `serve`, `generate`, `logits`, `explain` and `bench engine`.',
  },
  { title: 'Server', key: 'SERVER_FLAGS', intro: 'Taken by `serve` beside the engine flags.' },
]

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const load = file => import(pathToFileURL(join(root, 'dist', 'config', file)).href)
  const [flags, { expectation }] = [await load('flags.js'), await load('flag-spec.js')]
  const foreign = await load('sglang-flags.js')
  const page = renderFlags(
    TABLES.map(t => ({ ...t, table: flags[t.key] })),
    expectation,
    foreign,
  )
  if (!process.argv.includes('--check')) writeFileSync(FLAGS_PAGE, page)
  else if (readFileSync(FLAGS_PAGE, 'utf8') !== page) {
    console.error('docs/flags.md is stale. Run: npm run build && node scripts/flags-doc.mjs')
    process.exit(1)
  }
}
