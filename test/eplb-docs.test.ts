// The pictures and every generated figure of the eplb pages are what the tool gives today.
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { expect, it } from 'vitest'
import { run } from '../src/cli/main.js'
import { captureIo } from './capture-io.js'

interface Generator {
  eplbDocs(
    eplb: (args: readonly string[]) => Promise<{ code: number; out: string; err: string }>,
  ): Promise<Readonly<Record<string, string>>>
}

const root = fileURLToPath(new URL('..', import.meta.url))

it('the eplb pages and pictures are fresh', async () => {
  const { eplbDocs } = (await import(pathToFileURL(join(root, 'scripts/eplb-docs.mjs')).href)) as Generator
  const files = await eplbDocs(async args => {
    const io = captureIo()
    const code = await run(['eplb', ...args], io)
    return { code, out: io.stdout, err: io.stderr }
  })
  expect(Object.keys(files).length).toBe(6)
  for (const [path, content] of Object.entries(files)) {
    expect(
      readFileSync(join(root, path), 'utf8'),
      `${path} is stale, run: npm run build && node scripts/eplb-docs.mjs`,
    ).toBe(content)
  }
}, 60_000)
