// `npm start`: build what is stale, then serve the bundled demo model on min(2, cores) ranks: each its own attention-DP
// rank with half of the experts. A GPU takes one rank. Flags given after `npm start --` come last and win.
import { spawnSync } from 'node:child_process'
import { availableParallelism } from 'node:os'
import { fileURLToPath } from 'node:url'

const root = fileURLToPath(new URL('..', import.meta.url))
const build = spawnSync(process.execPath, ['scripts/build.mjs'], { cwd: root, stdio: 'inherit' })
if (build.status !== 0) process.exit(build.status ?? 1)
const given = process.argv.slice(2)
const device = given.find((_, i) => given[i - 1] === '--device') ?? given.find(arg => arg.startsWith('--device=')) ?? ''
const ranks = String(/^(--device=)?cuda/.test(device) ? 1 : Math.min(2, availableParallelism()))
const layout = ['--tp-size', ranks, '--attn-dp-size', ranks, '--ep-size', ranks]
const chosen = given.some(arg => /^--(tp|attn-dp|ep|dp)-size/.test(arg)) ? given : [...layout, ...given]
process.argv.splice(2, given.length, 'serve', fileURLToPath(new URL('../models/demo', import.meta.url)), ...chosen)
await import('../bin/switchyard.js')
