// `npm run build`: native kernels (when a compiler is there), then TypeScript. Skips what is already up to date.
import { spawnSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import { fileURLToPath } from 'node:url'

const root = fileURLToPath(new URL('..', import.meta.url))
const run = (...args) => {
  const { status } = spawnSync(process.execPath, args, { cwd: root, stdio: 'inherit' })
  if (status !== 0) process.exit(status ?? 1)
}

run('scripts/build-kernels.mjs', '--optional')
if (!existsSync(`${root}dist/index.js`))
  console.error('switchyard: compiling TypeScript; the first time takes up to a minute')
run('node_modules/typescript/bin/tsc', '-p', 'tsconfig.json')
