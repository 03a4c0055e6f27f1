// Writes the pictures of the eplb pages again, and in those pages whatever stands between `<!-- figures: NAME -->` and
// `<!-- end -->`: tables and sentences whose numbers come from running the tool on the recorded demo load. Nothing in them is
// a time, so the same planner writes the same files; test/eplb-docs.test.ts fails when they are stale. Run `npm run build` first.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'

const root = fileURLToPath(new URL('..', import.meta.url))
const dump = join(root, 'test/fixtures/recorder-dumps/expert_distribution_recorder_1764420000.0.pt')

const PICTURES = {
  plan: 'plan DUMP --gpus 8 --redundant 8 --last 120',
  compare: 'compare DUMP --gpus 8 --nodes 2 --redundant 8 --groups 4 --last 120',
  replay: 'replay DUMP --gpus 8 --redundant 8 --policies switchyard --thresholds 1,0.8',
  sweep: 'sweep DUMP --gpus 4,8,12,16,24,32 --redundant 8 --last 120',
}
const ALL_POLICIES = 'deepseek,deepseek_hierarchical,deepseek_vec,deepseek_vec_hierarchical,switchyard'
const REPLAY_ALL = `replay DUMP --gpus 8 --nodes 2 --redundant 8 --groups 4 --policies ${ALL_POLICIES}`
const LAMBDA = 'plan DUMP --gpus 8 --redundant 8 --last 120 --current trivial'
const LAMBDAS = [5, 1, 0.2, 'default', 0]
const REFUSED = 'plan DUMP --gpus 8 --nodes 3'

const four = n => n.toFixed(4)
const whole = n => Math.round(n).toLocaleString('en-US')
const markdownTable = (head, rows) =>
  [head, head.map(() => '---'), ...rows].map(cells => `| ${cells.join(' | ')} |`).join('\n')
const madeWith = command => `\`switchyard eplb ${command}\``

/**
 * Every file that this script keeps: {path from the root: content}.
 * @param eplb runs `switchyard eplb` with arguments: resolves to {code, out, err}
 */
export async function eplbDocs(eplb) {
  const args = command => command.split(' ').map(word => (word === 'DUMP' ? dump : word))
  const json = async command => JSON.parse((await eplb([...args(command), '--json'])).out)
  const files = {}

  const folder = mkdtempSync(join(tmpdir(), 'eplb-docs-'))
  try {
    for (const [name, command] of Object.entries(PICTURES)) {
      const file = join(folder, `${name}.svg`)
      await eplb([...args(command), '--svg', file, '--json'])
      files[`docs/images/eplb-${name}.svg`] = readFileSync(file, 'utf8')
    }
  } finally {
    rmSync(folder, { recursive: true })
  }

  const plan = await json(PICTURES.plan)
  const compare = await json(PICTURES.compare)
  const replay = await json(PICTURES.replay)
  const replayAll = await json(REPLAY_ALL)
  const figures = {
    plan: `*The TypeScript part of the recording above on 8 GPUs: ${four(plan.withoutRedundant)} without redundant experts, ${four(plan.before.balancedness)} with 8 that
are placed trivially (before: slot p holds expert p mod 32), ${four(plan.after.balancedness)} with the same 8 planned (after). Made with
${madeWith(`${PICTURES.plan} --svg eplb-plan.svg`)}.*`,
    compare: compareFigures(compare),
    replay: replayFigures(replay),
    policies: policyFigures(replayAll),
    lambda: await lambdaFigures(json),
    refused: `\`\`\`\n${(await eplb(args(REFUSED))).err.trimEnd()}\n\`\`\``,
  }
  const used = new Set()
  for (const page of ['docs/eplb-quickstart.md', 'docs/eplb-algorithms.md']) {
    files[page] = readFileSync(join(root, page), 'utf8').replace(
      /(<!-- figures: (\w+) -->\n)[\s\S]*?(<!-- end -->)/g,
      (_, open, name, close) => {
        if (!(name in figures)) throw new Error(`${page} asks for figures named ${name}`)
        used.add(name)
        return `${open}${figures[name]}\n${close}`
      },
    )
  }
  for (const name of Object.keys(figures)) if (!used.has(name)) throw new Error(`no page shows ${name}`)
  return files
}

function compareFigures({ before, rows, sizes }) {
  const cells = rows.map(row => {
    const mark = text => (row.algorithm === 'switchyard' ? `**${text}**` : text)
    const { after, movesRelabelled, links } = row
    return [
      mark(row.algorithm),
      mark(four(after.balancedness)),
      mark(four(after.peakOverBound)),
      whole(movesRelabelled.moves),
      `${(100 * links.crossing).toFixed(1)}%`,
    ]
  })
  const loaded = before.meanPerLayer.filter(mean => mean > 0).length
  return `*The TypeScript part of the recorded demo load (${loaded} MoE layers, ${sizes.logical} experts) on ${sizes.gpus} GPUs in ${sizes.nodes} nodes with ${sizes.physical - sizes.logical} redundant experts
and 4 groups. Made with ${madeWith(`${PICTURES.compare} --svg eplb-compare.svg`)}.*

${markdownTable(
  ['algorithm', 'balancedness', 'peak ÷ lower bound', 'experts to move, relabelled', 'crosses nodes'],
  [['before (trivial)', four(before.balancedness), four(before.peakOverBound), '', ''], ...cells],
)}`
}

function replayFigures({ runs }) {
  const [none, once, always, below] = runs
  const [first, second] = below.rebalances
  if (below.rebalances.length !== 2) throw new Error('the sentence about two plans no longer holds')
  const lowest = Math.min(...below.balancedness.slice(first.step, second.step))
  return `*Prose until step 120, then a drift to TypeScript until step 180. The trivial placement (8 redundant experts, which are
copies of experts 0 to 7) has a mean balancedness of ${four(none.meanBalancedness)}; one plan after the first ${first.step} steps that is kept, ${four(once.meanBalancedness)}.
A plan after the first ${first.step} steps lifts the look-back window from ${four(first.before)} to ${four(first.planned)}; the drift lets single steps fall to ${four(lowest)}; the
second plan of the policy "below 0.8", after step ${second.step}, lifts the window from ${four(second.before)} to ${four(second.planned)}. Two plans (${whole(below.moves)} experts moved) reach
${four(below.meanBalancedness)} over the recording, a plan every 20 steps (${whole(always.moves)} moved) ${four(always.meanBalancedness)}.*`
}

function policyFigures({ runs }) {
  const rows = runs.map(run => {
    const mark = text => (run.algorithm === 'switchyard' && !run.once ? `**${text}**` : text)
    return [
      run.algorithm === 'none'
        ? 'trivial placement kept'
        : run.once
          ? `first plan kept (${run.algorithm})`
          : mark(run.algorithm),
      mark(four(run.meanBalancedness)),
      mark(whole(run.moves)),
    ]
  })
  return `${markdownTable(['a plan every 20 steps from the last 20', 'mean balancedness of steps', 'experts moved, relabelled'], rows)}

*The whole recorded demo load, 300 steps. Made with ${madeWith(REPLAY_ALL)}.*`
}

async function lambdaFigures(json) {
  const rows = []
  for (const lambda of LAMBDAS) {
    const report = await json(lambda === 'default' ? LAMBDA : `${LAMBDA} --lambda ${lambda}`)
    if (rows.length === 0) rows.push(['keep the placement', four(report.before.balancedness), '0'])
    const name = lambda === 'default' ? `${report.lambda} (default)` : String(lambda)
    rows.push([name, four(report.after.balancedness), whole(report.moves.moves)])
  }
  return `${markdownTable(['λ', 'balancedness', 'experts that move'], rows)}

*Made with ${madeWith(LAMBDA)} and \`--lambda\`.*`
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const { run } = await import(pathToFileURL(join(root, 'dist/cli/main.js')).href)
  const files = await eplbDocs(async args => {
    let out = ''
    let err = ''
    const code = await run(['eplb', ...args], {
      out: text => {
        out += text
      },
      err: text => {
        err += text
      },
      outIsTerminal: false,
      errIsTerminal: false,
      columns: 100,
      env: {},
      onSignal: () => () => {},
    })
    return { code, out, err }
  })
  for (const [path, content] of Object.entries(files)) {
    if (readFileSync(join(root, path), 'utf8') === content) continue
    writeFileSync(join(root, path), content)
    console.log(`wrote ${path}`)
  }
}
