#!/usr/bin/env node
// The `switchyard` command. Everything lives in dist/cli; this file only says how to get dist when it is missing.
import { existsSync } from 'node:fs'
import { fileURLToPath } from 'node:url'

const entry = new URL('../dist/cli/main.js', import.meta.url)
if (!existsSync(fileURLToPath(entry))) {
  console.error('switchyard is not built yet. Run: npm run build')
  process.exit(2)
}
const { main } = await import(entry.href)
await main(process.argv)
