// What the pages promise holds: links lead somewhere, quoted command lines parse, the page of flags says what the tables say.
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { dirname, join, relative } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import type { Command } from 'commander'
import { beforeAll, describe, expect, it } from 'vitest'
import { takeFlags } from '../src/cli/flag-options.js'
import { createProgram } from '../src/cli/main.js'
import { expectation, type FlagTable } from '../src/config/flag-spec.js'
import { ENGINE_FLAGS, SERVER_FLAGS } from '../src/config/flags.js'
import { IGNORED_FLAGS, REFUSED_FLAGS } from '../src/config/sglang-flags.js'
import { DRILL_KINDS } from '../src/engine/drill.js'
import { SUPPORTED_ARCHITECTURES } from '../src/formats/hf/read-model-spec.js'
import { OPERATIONS } from '../src/program/operation.js'
import { VOTE_FIELDS } from '../src/scheduler/index.js'
import { captureIo } from './capture-io.js'

const root = fileURLToPath(new URL('..', import.meta.url))
const inDocs = readdirSync(join(root, 'docs')).filter(name => name.endsWith('.md'))
const pages = ['README.md', 'ARCHITECTURE.md', 'FEATURES.md', ...inDocs.map(name => `docs/${name}`)]
const read = (page: string): string => readFileSync(join(root, page), 'utf8')

const FENCE = /^```.*\n([\s\S]*?)^```/gm
const withoutFences = (text: string): string => text.replace(FENCE, '')

/** GitHub's anchor of a heading. */
const slug = (heading: string): string =>
  heading
    .toLowerCase()
    .replace(/[`*]/g, '')
    .replace(/[^\p{L}\p{N}\s_-]/gu, '')
    .trim()
    .replace(/\s/g, '-')

const headings = (text: string): string[] =>
  [...withoutFences(text).matchAll(/^#+ (.+)$/gm)].map(([, heading]) => slug(heading!))

describe('links', () => {
  it.each(pages)('of %s lead somewhere', page => {
    const broken: string[] = []
    for (const [, target] of withoutFences(read(page)).matchAll(/\]\(([^)\s]+)\)/g)) {
      if (/^[a-z]+:/.test(target!)) continue
      const [path, anchor] = target!.split('#')
      const file = path === '' ? join(root, page) : join(root, dirname(page), path!)
      if (!existsSync(file)) broken.push(target!)
      else if (anchor && file.endsWith('.md') && !headings(readFileSync(file, 'utf8')).includes(anchor)) {
        broken.push(target!)
      }
    }
    expect(broken).toEqual([])
  })

  it('to every page start at the README or at a page that it links to', () => {
    const linked = (page: string) =>
      [...read(page).matchAll(/\]\(([^)\s#]+\.md)/g)].map(([, to]) => relative(root, join(root, dirname(page), to!)))
    const reached = new Set(['README.md'])
    for (const page of reached) {
      for (const to of linked(page)) if (pages.includes(to)) reached.add(to)
    }
    expect(pages.filter(page => !reached.has(page))).toEqual([])
  })
})

/** Words of a shell command: quotes and backslashes undone, up to a pipe, redirection or comment. */
function shellWords(line: string): string[] {
  const words: string[] = []
  const word = /\s*(?:(#.*|[|>&;].*|2>.*)|((?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^\s'"\\])+))/gy
  for (let match = word.exec(line); match && match[2] !== undefined; match = word.exec(line)) {
    words.push(
      match[2].replace(
        /'([^']*)'|"((?:\\.|[^"\\])*)"|\\(.)/g,
        (_, plain?: string, quoted?: string, escaped?: string) =>
          quoted === undefined ? (plain ?? escaped ?? '') : quoted.replace(/\\(.)/g, '$1'),
      ),
    )
  }
  return words
}

const COMMAND = /^(?:\$ )?(?:npx |node bin\/)?switchyard(?:\.js)? (.*)$/

/** Command lines of the fenced blocks of a page, without the program's name. */
function fencedCommands(page: string): string[] {
  return [...read(page).matchAll(FENCE)].flatMap(([, block]) =>
    block!
      .replace(/\\\n/g, ' ')
      .split('\n')
      .flatMap(line => COMMAND.exec(line)?.[1] ?? []),
  )
}

/** `switchyard …` in running text: may hold placeholders, so only its command and the names of its flags are checked. */
const inlineCommands = (page: string): string[] =>
  [...withoutFences(read(page)).matchAll(/`(?:npx |node bin\/)?switchyard(?:\.js)? ([a-z][^`]*)`/g)].map(([, c]) => c!)

const freshProgram = (): Command => createProgram(captureIo(), () => {})

/** Follows the names of commands. @returns the command and what is left */
function commandOf(words: readonly string[]): { command: Command; rest: readonly string[] } {
  let command = freshProgram()
  let taken = 0
  for (; taken < words.length; taken++) {
    const next = command.commands.find(c => c.name() === words[taken])
    if (!next) break
    command = next
  }
  return { command, rest: words.slice(taken) }
}

const hasFlag = (command: Command, flag: string): boolean =>
  flag === '--help' || command.options.some(option => option.long === flag)

/** Parses a whole command line as the program would, values included, and runs nothing. */
async function parse(line: string): Promise<void> {
  const program = freshProgram()
  const quiet = (command: Command): void => {
    command
      .exitOverride()
      .configureOutput({ writeErr: () => {}, writeOut: () => {} })
      .allowExcessArguments(false)
    for (const child of command.commands) quiet(child)
    if (command.commands.length > 0) return
    command.action(() => {
      const options = command.opts()
      if (hasFlag(command, '--tp-size')) takeFlags(ENGINE_FLAGS, options)
      if (hasFlag(command, '--port')) takeFlags(SERVER_FLAGS, options)
    })
  }
  quiet(program)
  await program.parseAsync(shellWords(line), { from: 'user' })
}

describe('command lines', () => {
  it.each(pages.filter(page => fencedCommands(page).length > 0))('of %s parse', async page => {
    for (const line of fencedCommands(page)) {
      if (/(^| )--help\b/.test(line)) continue
      await expect(parse(line), line).resolves.toBeUndefined()
    }
  })

  it.each(pages.filter(page => inlineCommands(page).length > 0))('in the text of %s name commands and flags', page => {
    for (const text of inlineCommands(page)) {
      const { command, rest } = commandOf(text.replace(/\\?\|\w+/g, '').split(/\s+/))
      expect(command.name(), text).not.toBe('switchyard')
      const unknown = rest.filter(word => word.startsWith('--') && !hasFlag(command, word.split('=')[0]!))
      expect(unknown, text).toEqual([])
    }
  })

  it('are found at all, and a wrong one is noticed', async () => {
    expect(pages.flatMap(fencedCommands).length).toBeGreaterThan(20)
    expect(shellWords(`generate d --prompt "a \\"b\\"" --failure-drill '{"rank": 1}' # no > yes`)).toEqual([
      'generate',
      'd',
      '--prompt',
      'a "b"',
      '--failure-drill',
      '{"rank": 1}',
    ])
    await expect(parse('serve models/demo --tp-siz 2')).rejects.toThrow()
    await expect(parse('serve models/demo --tp-size two')).rejects.toThrow()
    await expect(parse('serv models/demo')).rejects.toThrow()
  })
})

describe('tables', () => {
  it.each([
    ['docs/step-agreement.md', VOTE_FIELDS],
    ['docs/program.md', Object.keys(OPERATIONS)],
    ['docs/failures.md', DRILL_KINDS],
    ['docs/checkpoints.md', SUPPORTED_ARCHITECTURES],
  ] as const)('of %s keep up with the code', (page, names) => {
    const text = read(page)
    expect(names.length).toBeGreaterThan(4)
    expect(names.filter(name => !text.includes(`\`${name}\``))).toEqual([])
  })
})

describe('the table of commands in the README', () => {
  const leaves = (command: Command, names: readonly string[] = []): string[] =>
    command.commands.length === 0 ? [names.join(' ')] : command.commands.flatMap(c => leaves(c, [...names, c.name()]))

  it('names every command there is', () => {
    const section = /^## Commands\n[\s\S]*?(?=^## )/m.exec(read('README.md'))![0]
    // `a b\|c` stands for two.
    const named = [...section.matchAll(/^\| `switchyard ([^`]+)`/gm)].flatMap(([, words]) => {
      const [first, ...others] = words!.split('\\|')
      return [first!, ...others.map(other => `${first!.split(' ').slice(0, -1).join(' ')} ${other}`)]
    })
    const all = leaves(createProgram(captureIo(), () => {}))
    expect(all.length).toBeGreaterThan(10)
    expect(all.filter(command => !named.some(n => n === command || n.startsWith(`${command} `)))).toEqual([])
  })
})

describe('docs/flags.md', () => {
  interface Generator {
    readonly FLAGS_PAGE: string
    readonly TABLES: readonly { readonly key: string; readonly title: string; readonly intro: string }[]
    renderFlags(tables: readonly object[], words: typeof expectation, foreign: object): string
  }
  const flagTables: Readonly<Record<string, FlagTable>> = { ENGINE_FLAGS, SERVER_FLAGS }
  let generator: Generator
  beforeAll(async () => {
    generator = (await import(pathToFileURL(join(root, 'scripts/flags-doc.mjs')).href)) as Generator
  })

  it('says what the tables say', () => {
    const foreign = { IGNORED_FLAGS, REFUSED_FLAGS }
    const tables = generator.TABLES.map(t => ({ ...t, table: flagTables[t.key] }))
    const page = readFileSync(generator.FLAGS_PAGE, 'utf8')
    expect(page, 'run: npm run build && node scripts/flags-doc.mjs').toBe(
      generator.renderFlags(tables, expectation, foreign),
    )
  })

  it('names every flag', () => {
    const page = read('docs/flags.md')
    for (const table of Object.values(flagTables)) {
      for (const { name } of Object.values(table)) expect(page).toContain(`\`--${name}\``)
    }
  })
})
