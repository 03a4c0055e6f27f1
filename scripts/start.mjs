// `npm start`: build what is stale, then serve the bundled demo model.
import { spawnSync } from 'node:child_process'
import { fileURLToPath } from 'node:url'

const root = fileURLToPath(new URL('..', import.meta.url))
const build = spawnSync(process.execPath, ['scripts/build.mjs'], { cwd: root, stdio: 'inherit' })
if (build.status !== 0) process.exit(build.status ?? 1)
process.argv.splice(2, 0, 'serve', fileURLToPath(new URL('../models/demo', import.meta.url)))
await import('../bin/switchyard.js')
