// docs/errors.md says what the code says, and every code is fit for users.
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { beforeAll, describe, expect, it } from 'vitest'
import type { ErrorTemplate } from '../src/config/errors.js'

interface Area {
  readonly area: string
  readonly templates: Readonly<Record<string, ErrorTemplate>>
}
interface Generator {
  readonly ERRORS_PAGE: string
  errorFiles(folder: string, ending: string): string[]
  areasOf(modules: readonly object[]): Area[]
  renderErrors(areas: readonly Area[]): string
}

const root = fileURLToPath(new URL('..', import.meta.url))
let generator: Generator
let areas: Area[]
beforeAll(async () => {
  generator = (await import(pathToFileURL(join(root, 'scripts/errors-doc.mjs')).href)) as Generator
  const src = join(root, 'src')
  const modules: object[] = []
  for (const file of generator.errorFiles(src, '.ts'))
    modules.push((await import(pathToFileURL(join(src, file)).href)) as object)
  areas = generator.areasOf(modules)
})

describe('errors', () => {
  it('are all on the page, as they are in the code', () => {
    const page = readFileSync(generator.ERRORS_PAGE, 'utf8')
    expect(page, 'run: npm run docs:errors').toBe(generator.renderErrors(areas))
  })

  it('have unique areas and codes of the common form', () => {
    expect(areas.length).toBeGreaterThan(3)
    expect(new Set(areas.map(a => a.area)).size).toBe(areas.length)
    const codes = areas.flatMap(a => Object.keys(a.templates))
    expect(new Set(codes).size).toBe(codes.length)
    for (const code of codes) expect(code).toMatch(/^SY_[A-Z\d]+(_[A-Z\d]+)+$/)
  })

  it('say a cause and a remedy, with an HTTP status', () => {
    for (const { templates } of areas) {
      for (const [code, { status, message, remedy }] of Object.entries(templates)) {
        expect(
          message.replace(/\{\w+\}/g, '').trim().length,
          `${code} says nothing without its fields`,
        ).toBeGreaterThan(3)
        // A remedy may be one hole: the thrower then says it.
        expect(/^\{\w+\}$/.test(remedy) || remedy.length > 10, code).toBe(true)
        expect(status, code).toBeGreaterThanOrEqual(400)
        expect(status, code).toBeLessThan(600)
      }
    }
  })

  it('are declared only in files that the page looks into', () => {
    const src = join(root, 'src')
    const seen = new Set(generator.errorFiles(src, '.ts'))
    const others = readdirSync(src, { recursive: true, encoding: 'utf8' }).filter(
      name => name.endsWith('.ts') && !name.endsWith('.test.ts') && !seen.has(name),
    )
    expect(others.length).toBeGreaterThan(seen.size)
    const strays = others.filter(name => readFileSync(join(src, name), 'utf8').includes('extends errorArea('))
    expect(strays).toEqual([])
  })
})
