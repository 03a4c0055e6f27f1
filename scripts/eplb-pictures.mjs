// Draws docs/images/eplb-*.svg again from the recorded demo load, with the commands that the pages in docs name.
// Run `npm run build` first. The pictures hold no times, so the same planner draws the same files.
import { spawnSync } from 'node:child_process'
import { fileURLToPath } from 'node:url'

const root = fileURLToPath(new URL('..', import.meta.url))
const dump = 'test/fixtures/recorder-dumps/expert_distribution_recorder_1764420000.0.pt'
const pictures = {
  plan: 'plan DUMP --gpus 8 --redundant 8 --last 120',
  compare: 'compare DUMP --gpus 8 --nodes 2 --redundant 8 --groups 4 --last 120',
  replay: 'replay DUMP --gpus 8 --redundant 8 --policies switchyard --thresholds 1,0.8',
  sweep: 'sweep DUMP --gpus 4,8,12,16,24,32 --redundant 8 --last 120',
}
for (const [name, command] of Object.entries(pictures)) {
  const args = command.replace('DUMP', dump).split(' ')
  const run = ['bin/switchyard.js', 'eplb', ...args, '--svg', `docs/images/eplb-${name}.svg`]
  const { status } = spawnSync(process.execPath, run, { cwd: root, stdio: ['ignore', 'ignore', 'inherit'] })
  if (status !== 0) process.exit(status ?? 1)
}
