// Writes docs/errors.md from the error areas in the code: every file of src/ whose name ends in errors.ts, every class made
// by errorArea. `--check` changes nothing and fails when the page is stale. Run `npm run build` first.
import { readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'

const root = fileURLToPath(new URL('..', import.meta.url))
export const ERRORS_PAGE = join(root, 'docs', 'errors.md')

/** Source files that declare error areas, relative to `folder`, sorted. */
export function errorFiles(folder, ending) {
  return readdirSync(folder, { recursive: true, encoding: 'utf8' })
    .filter(name => name.endsWith(`errors${ending}`))
    .sort()
}

/** The areas that `modules` export, by name: [{area, templates}]. */
export function areasOf(modules) {
  const areas = new Map()
  for (const exported of modules.flatMap(module => Object.values(module))) {
    if (typeof exported !== 'function' || typeof exported.area !== 'string') continue
    areas.set(exported, { area: exported.area, templates: exported.templates })
  }
  return [...areas.values()].sort((a, b) => a.area.localeCompare(b.area, 'en'))
}

/** The page as Markdown. */
export function renderErrors(areas) {
  const codes = areas.reduce((sum, { templates }) => sum + Object.keys(templates).length, 0)
  const lines = [
    '# Errors',
    '',
    '<!-- Written by scripts/errors-doc.mjs from the code. Do not edit. -->',
    '',
    `Everything that can go wrong for a user has a code, a cause and a remedy: ${codes} codes in ${areas.length} areas.`,
    'Words in braces are filled in. On the command line an error reads `error CODE: message`, then `fix: remedy`, and the',
    "exit status is 2 for codes with an HTTP status below 500, else 1. Over HTTP the same text comes in OpenAI's error shape with the",
    "HTTP status; `code` is OpenAI's own where clients look for one (`context_length_exceeded`, `model_not_found`, `invalid_api_key`).",
  ]
  for (const { area, templates } of areas) {
    lines.push('', `## ${area}`)
    for (const [code, { status, message, remedy }] of Object.entries(templates).sort(([a], [b]) => (a < b ? -1 : 1))) {
      lines.push(
        '',
        `### ${code}`,
        '',
        `HTTP ${status}.`,
        '',
        `- Cause: ${markdown(message)}`,
        `- Remedy: ${markdown(remedy)}`,
      )
    }
  }
  return `${lines.join('\n')}\n`
}

const markdown = text =>
  /^\{\w+\}$/.test(text) ? 'depends on the case; the error says it.' : text.replace(/[<>*|]/g, '\\$&')

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const dist = join(root, 'dist')
  const modules = []
  // Listed from the sources: dist/ may still hold files of sources that are gone.
  for (const file of errorFiles(join(root, 'src'), '.ts')) {
    modules.push(await import(pathToFileURL(join(dist, file.replace(/\.ts$/, '.js'))).href))
  }
  const page = renderErrors(areasOf(modules))
  if (!process.argv.includes('--check')) writeFileSync(ERRORS_PAGE, page)
  else if (readFileSync(ERRORS_PAGE, 'utf8') !== page) {
    console.error('docs/errors.md is stale. Run: npm run docs:errors')
    process.exit(1)
  }
}
