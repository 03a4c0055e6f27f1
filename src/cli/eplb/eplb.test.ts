// `switchyard eplb` from files to JSON and text, on recorded dumps.
import { spawnSync } from 'node:child_process'
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, describe, expect, it } from 'vitest'
import type { CompareReport, PlanReport, ReplayReport, SweepReport } from '../../eplb/index.js'
import type { CliIo } from '../io.js'
import { run } from '../main.js'

const dumps = fileURLToPath(new URL('../../../test/fixtures/recorder-dumps/', import.meta.url))
const at = (name: string) => join(dumps, `expert_distribution_recorder_${name}.pt`)
const STAT = at('1764420000.0')
const dir = mkdtempSync(join(tmpdir(), 'eplb-cli-'))
afterAll(() => rmSync(dir, { recursive: true }))

/** Runs the program in this process, as a user's shell would see it. */
async function eplb(
  args: string[],
  options: { terminal?: boolean; env?: Record<string, string>; columns?: number } = {},
) {
  let out = ''
  let err = ''
  const io: CliIo = {
    out: text => {
      out += text
    },
    err: text => {
      err += text
    },
    outIsTerminal: options.terminal ?? false,
    errIsTerminal: false,
    columns: options.columns ?? 100,
    env: options.env ?? {},
    onSignal: () => () => {},
  }
  const code = await run(['eplb', ...args], io)
  return { code, out, err }
}

async function json<T>(args: string[]): Promise<T> {
  const { code, out, err } = await eplb([...args, '--json'])
  expect(err.replaceAll(/^(wrote|planning:) .*\n/gm, '')).toBe('')
  expect(code).toBe(0)
  return JSON.parse(out) as T
}

const mean = (values: readonly number[]) => values.reduce((a, b) => a + b, 0) / values.length

describe('eplb inspect', () => {
  const expected = JSON.parse(readFileSync(join(dumps, 'expected.json'), 'utf8')) as Record<
    string,
    Record<string, { shape: number[]; sum: number }>
  >
  for (const [file, tensors] of Object.entries(expected)) {
    it(`says what ${file} holds`, async () => {
      const facts = await json<Record<string, unknown>>(['inspect', join(dumps, file)])
      const load = tensors['logical_count']
      const map = tensors['last_physical_to_logical_map'] ?? tensors['physical_to_logical_map']
      if (load !== undefined) {
        expect([facts['steps'], facts['layers'], facts['logical']]).toEqual(load.shape)
        expect(facts['total']).toBe(load.sum)
      }
      if (map !== undefined) expect([facts['layers'], facts['physical']]).toEqual(map.shape)
      expect(Object.keys(facts)).toEqual(
        expect.arrayContaining(['format', 'mode', 'steps', 'layers', 'logical', 'physical', 'total', 'balancedness']),
      )
    })
  }

  it('sums ranks and writes the sum as a stat dump', async () => {
    const merged = join(dir, 'merged.pt')
    const ranks = [at('1764420100.25_0'), at('1764420100.25_1')]
    const facts = await json<Record<string, unknown>>(['inspect', ...ranks, '--gpus', '6', '--out', merged])
    expect(facts).toMatchObject({ mode: 'per_pass', layers: 6, logical: 32, physical: 36 })
    expect(facts['balancedness']).toBeGreaterThan(0.3)
    expect(facts['balancedness']).toBeLessThan(1)
    const again = await json<Record<string, unknown>>(['inspect', merged])
    expect(again).toMatchObject({ mode: 'stat', steps: facts['steps'], total: facts['total'] })
  })

  it('draws with colour on terminals only, and never with NO_COLOR', async () => {
    const colour = '\x1b[48;5;'
    expect((await eplb(['inspect', STAT, '--gpus', '8'], { terminal: true })).out).toContain(colour)
    expect((await eplb(['inspect', STAT, '--gpus', '8'])).out).not.toContain('\x1b')
    const plain = await eplb(['inspect', STAT, '--gpus', '8'], { terminal: true, env: { NO_COLOR: '1' } })
    expect(plain.out).not.toContain('\x1b')
    expect(plain.out).toContain('no routed tokens')
  })

  it('keeps lines within narrow terminals', async () => {
    const { out } = await eplb(['inspect', STAT, '--gpus', '8'], { columns: 60 })
    const heat = out.split('\n').filter(line => line.includes('│'))
    expect(heat.length).toBe(10)
    for (const line of heat) expect(line.length).toBeLessThanOrEqual(60)
  })
})

describe('eplb plan', () => {
  it('writes a one-key placement in which every expert has a slot in every layer', async () => {
    const out = join(dir, 'placement.json')
    const report = await json<PlanReport>([
      'plan',
      STAT,
      '--gpus',
      '8',
      '--nodes',
      '2',
      '--redundant',
      '8',
      '--out',
      out,
    ])
    const placement = JSON.parse(readFileSync(out, 'utf8')) as Record<string, number[][]>
    expect(Object.keys(placement)).toEqual(['physical_to_logical_map'])
    const rows = placement['physical_to_logical_map']!
    expect(rows.length).toBe(6)
    for (const row of rows) {
      expect(row.length).toBe(40)
      expect([...new Set(row)].sort((a, b) => a - b)).toEqual([...Array(32).keys()])
    }
    expect(report.sizes).toMatchObject({ physical: 40, gpus: 8, nodes: 2 })
    expect(report.after.balancedness).toBeGreaterThan(report.before.balancedness)
    const back = await json<Record<string, unknown>>(['inspect', out])
    expect(back).toMatchObject({ mode: 'placement', layers: 6, logical: 32, physical: 40 })
  })

  it('counts moves from the current placement, in bytes too; a plan to where one is moves nothing', async () => {
    const current = join(dumps, 'placement.pt')
    const args = ['plan', STAT, '--gpus', '8', '--redundant', '8', '--current', current, '--expert-bytes', '44MB']
    const report = await json<PlanReport>(args)
    expect(report.beforeIs).toBe('current')
    expect(report.moves!.moves).toBe(report.moves!.sameNode + report.moves!.crossNode)
    expect(report.moves!.bytes).toBe(report.moves!.moves * 44e6)
    const out = join(dir, 'there.json')
    await json<PlanReport>(['plan', STAT, '--gpus', '8', '--redundant', '8', '--out', out])
    const again = await json<PlanReport>(['plan', STAT, '--gpus', '8', '--redundant', '8', '--current', out])
    expect(again.moves!.moves).toBe(0)
  })

  it('takes the placement recorded in the dump for the current one where its slots fit', async () => {
    const ranks = [at('1764420200.5_0'), at('1764420200.5_1')]
    const fits = await json<PlanReport & { notes: string[] }>(['plan', ...ranks, '--gpus', '6', '--redundant', '4'])
    expect(fits.beforeIs).toBe('current')
    const other = await json<PlanReport & { notes: string[] }>(['plan', ...ranks, '--gpus', '8', '--redundant', '8'])
    expect(other.beforeIs).toBe('trivial')
    expect(other.notes.join()).toContain('36 slots, not 40')
  })

  it('serves unequal GPUs and dead ones', async () => {
    const report = await json<PlanReport & { notes: string[] }>(['plan', STAT, '--slots', '8x4,4x2', '--dead', '5'])
    expect(report.sizes).toMatchObject({ gpus: 6, physical: 40, dead: [5], slotsPerGpu: [8, 8, 8, 8, 4, 4] })
    expect(report.after.gpuLoad.every(row => row[5] === 0)).toBe(true)
    expect(report.notes.join()).toContain('SGLang needs')
  })

  it('plans for the living from the placement in effect, also when a GPU took the only replica of an expert with it', async () => {
    const cluster = ['--gpus', '8', '--redundant', '16', '--dead', '3']
    const report = await json<PlanReport & { notes: string[] }>(['plan', STAT, ...cluster, '--current', 'trivial'])
    expect(report.beforeIs).toBe('current')
    expect(report.before.gpuLoad[1]![3]).toBeGreaterThan(0)
    expect(report.after.gpuLoad.every(row => row[3] === 0)).toBe(true)
    expect(report.moves!.moves).toBeGreaterThan(0)
    expect(report.notes.join()).toContain('come from the checkpoint')
  })

  it('says in text what to start SGLang with', async () => {
    const out = join(dir, 'p2.json')
    const { out: text, err, code } = await eplb(['plan', STAT, '--gpus', '8', '--redundant', '8', '--out', out])
    expect(code).toBe(0)
    expect(text).toContain(`--ep-size 8 --ep-num-redundant-experts 8 --init-expert-location ${out}`)
    expect(text).toMatch(/balancedness, mean over layers +0\.\d{4} +0\.\d{4}/)
    expect(text).toMatch(/furthest from it, in tokens +[\d,]+ \/ [\d,]+ \(layer \d\) +[\d,]+ \/ [\d,]+ \(layer \d\)/)
    expect(err).toBe(`wrote ${out}\n`)
  })
})

describe('eplb compare', () => {
  it('shows ours ahead on the recorded load', async () => {
    const args = ['compare', STAT, '--gpus', '8', '--nodes', '2', '--redundant', '8', '--groups', '4', '--last', '120']
    const report = await json<CompareReport>([...args, '--lambda', '0'])
    expect(report.rows.map(row => row.algorithm).sort()).toEqual([
      'deepseek',
      'deepseek_hierarchical',
      'deepseek_vec',
      'deepseek_vec_hierarchical',
      'elasticity_aware',
      'elasticity_aware_hierarchical',
      'switchyard',
    ])
    const of = (name: string) => report.rows.find(row => row.algorithm === name)!.after!.balancedness
    for (const row of report.rows) expect(of('switchyard')).toBeGreaterThanOrEqual(row.after!.balancedness)
    expect(report.best).toBe('switchyard')
    const { out } = await eplb(args)
    for (const row of report.rows) expect(out).toContain(row.algorithm)
  })

  it('keeps within narrow terminals', async () => {
    for (const command of ['compare', 'replay', 'sweep']) {
      const args = [command, STAT, '--gpus', '8', '--redundant', '8', '--last', '60']
      const { out } = await eplb(args, { columns: 60 })
      const table = out.split('\n').filter(line => /[─▏█▁▂▃▄▅▆▇│]/.test(line) || /^(deepseek|switchyard)/.test(line))
      expect(table.length).toBeGreaterThan(3)
      for (const line of table) expect(line.length, line).toBeLessThanOrEqual(60)
    }
  })

  it('shows why an algorithm refuses the sizes and goes on', async () => {
    const report = await json<CompareReport>(['compare', STAT, '--gpus', '6', '--redundant', '2'])
    const refused = report.rows.filter(row => row.refused !== null)
    expect(refused.length).toBeGreaterThan(0)
    expect(report.rows.find(row => row.algorithm === 'switchyard')!.after).not.toBeNull()
    const { out, code } = await eplb(['compare', STAT, '--gpus', '6', '--redundant', '2'])
    expect(code).toBe(0)
    expect(out).toContain(refused[0]!.refused!.code)
  })
})

describe('eplb replay', () => {
  it('shows the fall, the rebalance and the recovery', async () => {
    const report = await json<ReplayReport>([
      ...['replay', STAT, '--gpus', '8', '--redundant', '8'],
      ...['--policies', 'switchyard', '--thresholds', '0.8', '--expert-bytes', '1MB'],
    ])
    const [none, ours] = [
      report.runs.find(r => r.algorithm === 'none')!,
      report.runs.find(r => r.algorithm === 'switchyard' && !r.once)!,
    ]
    expect(ours.balancedness.length).toBe(300)
    const prose = mean(ours.balancedness.slice(30, 120))
    const drift = Math.min(...ours.balancedness.slice(120, 200))
    const code = mean(ours.balancedness.slice(200))
    expect(prose).toBeGreaterThan(0.9)
    expect(drift).toBeLessThan(0.75)
    expect(code).toBeGreaterThan(0.85)
    expect(mean(none.balancedness)).toBeLessThan(0.7)
    const steps = ours.rebalances.map(r => r.step)
    expect(steps[0]).toBe(20)
    expect(steps.some(step => step >= 140 && step <= 220)).toBe(true)
    expect(steps.length).toBeLessThan(6)
    expect(ours.bytes).toBe(ours.moves * 1e6)
    expect(ours.gainOverOnce).toBeGreaterThan(0.05)
    expect(ours.gainOverOnce).toBeLessThan(ours.gain)
    const { out } = await eplb(['replay', STAT, '--gpus', '8', '--redundant', '8', '--policies', 'switchyard'])
    expect(out).toMatch(/^trivial placement kept +0\.\d+ +\+0\.0000 +-0\.\d+/m)
    expect(out).toMatch(/^first plan kept \(switchyard\) +0\.\d+ +\+0\.\d+ +\+0\.0000/m)
  })
})

describe('eplb replay of a short recording', () => {
  it('says that it never looks', async () => {
    const report = await json<ReplayReport & { notes: string[] }>(['replay', STAT, '--gpus', '8', '--last', '20'])
    expect(report.runs.every(run => run.rebalances.length === 0)).toBe(true)
    expect(report.notes.join()).toContain('smaller --interval')
  })
})

describe('eplb sweep', () => {
  it('gives utilisation for every number of GPUs', async () => {
    const report = await json<SweepReport>(['sweep', STAT, '--gpus', '4,8,12', '--redundant', '8', '--last', '40'])
    expect(report.rows.map(row => row.gpus)).toEqual([4, 8, 12])
    for (const row of report.rows) {
      const ours = row.with.find(w => w.algorithm === 'switchyard')!.utilisation!
      expect(ours).toBeGreaterThan(row.without)
      expect(ours).toBeLessThanOrEqual(1)
    }
  })
})

describe('what goes wrong', () => {
  const ragged = join(dir, 'ragged.json')
  writeFileSync(ragged, '{"logical_count": [[1, 2], [3]]}')
  const cases: [string, string[], RegExp][] = [
    ['no GPUs', ['plan', STAT], /SY_CONFIG_MISSING_ARGUMENT: .*--gpus/],
    ['a missing file', ['plan', join(dir, 'nothing.pt'), '--gpus', '8'], /SY_LOAD_UNREADABLE: .*no such file/],
    ['ragged counts', ['inspect', ragged], /SY_LOAD_RAGGED/],
    ['a number that is none', ['plan', STAT, '--gpus', 'eight'], /SY_CONFIG_BAD_VALUE: --gpus is eight/],
    ['an unknown algorithm', ['plan', STAT, '--gpus', '8', '--algorithm', 'deepsek'], /SY_CONFIG_BAD_VALUE/],
    ['an unknown flag', ['plan', STAT, '--gpu', '8'], /SY_CONFIG_UNKNOWN_FLAG: .*--gpu/],
    ['nodes that do not divide', ['plan', STAT, '--gpus', '8', '--nodes', '3'], /SY_EPLB_CLUSTER/],
    ['too few slots', ['plan', STAT, '--slots', '4x7'], /SY_EPLB_TOO_FEW_SLOTS/],
    ['every GPU dead', ['plan', STAT, '--gpus', '2', '--dead', '0,1'], /SY_EPLB_CLUSTER/],
    ['sizes an algorithm cannot serve', ['plan', STAT, '--gpus', '6', '--algorithm', 'deepseek'], /SY_EPLB_SIZES/],
    [
      'a placement of another size',
      ['plan', STAT, '--gpus', '8', '--current', join(dumps, 'placement.pt')],
      /SY_EPLB_PLACEMENT/,
    ],
    ['a load as placement', ['plan', STAT, '--gpus', '8', '--current', STAT], /SY_LOAD_NO_PLACEMENT/],
    ['a placement as load', ['plan', join(dumps, 'placement.pt'), '--gpus', '8'], /SY_LOAD_KIND: .*a placement/],
    [
      'an output that cannot be written',
      ['plan', STAT, '--gpus', '8', '--html', join(dir, 'no', 'x.html')],
      /SY_LOAD_UNREADABLE/,
    ],
    ['an endless list', ['plan', STAT, '--slots', '8x99999999'], /SY_EPLB_CLUSTER: .*100000 GPUs/],
    ['a list with two factors', ['plan', STAT, '--slots', '8x3x4'], /--slots is 8x3x4/],
    ['more slots than experts', ['plan', STAT, '--gpus', '8', '--redundant', '4000'], /504 slots for 32 experts/],
    ['absurdly many experts', ['plan', STAT, '--gpus', '8', '--redundant', '99999999'], /SY_EPLB_CLUSTER: .*slots/],
    ['an output without a name', ['plan', STAT, '--gpus', '8', '--out', ''], /--out is empty/],
    ['an output in no folder', ['plan', STAT, '--gpus', '8', '--out', join(dir, 'no', 'p.json')], /no such folder/],
    ['an output inside a file', ['plan', STAT, '--gpus', '8', '--out', join(STAT, 'p.json')], /SY_LOAD_UNREADABLE/],
    ['a name that SGLang would not read', ['plan', STAT, '--gpus', '8', '--out', 'p.npy'], /--out is p\.npy/],
    ['no regular file', ['plan', '/dev/zero', '--gpus', '8'], /SY_LOAD_UNREADABLE: .*regular file/],
    ['endless bytes', ['plan', STAT, '--gpus', '8', '--expert-bytes', '1e999'], /--expert-bytes is 1e999/],
    ['sizes without unit', ['plan', STAT, '--gpus', '8', '--expert-bytes', '44XB'], /--expert-bytes is 44XB/],
  ]
  for (const [what, args, message] of cases) {
    it(`${what}: two lines, exit 2`, async () => {
      const { code, out, err } = await eplb(args)
      expect(err).toMatch(message)
      expect(err).toMatch(/^error SY_\w+: .+\nfix: .+\n$/)
      expect(out).toBe('')
      expect(code).toBe(2)
    })
  }

  it('suggests the nearest algorithm', async () => {
    expect((await eplb(['plan', STAT, '--gpus', '8', '--algorithm', 'deepsek'])).err).toContain(
      'did you mean deepseek?',
    )
  })

  it('helps with examples for every command', async () => {
    for (const name of ['plan', 'inspect', 'compare', 'replay', 'sweep']) {
      const { out, code } = await eplb([name, '--help'])
      expect(code).toBe(0)
      expect(out).toContain('Examples:')
      expect(out).toContain(`switchyard eplb ${name}`)
    }
  })
})

const bin = fileURLToPath(new URL('../../../bin/switchyard.js', import.meta.url))
const built = existsSync(fileURLToPath(new URL('../../../dist/cli/eplb/index.js', import.meta.url)))
describe.skipIf(!built)(`the binary${built ? '' : ' (skipped: dist is not built)'}`, () => {
  it('plans, and ends with 2 and no stack on a broken file', () => {
    const good = spawnSync(process.execPath, [bin, 'eplb', 'plan', STAT, '--gpus', '8', '--redundant', '8', '--json'], {
      encoding: 'utf8',
    })
    expect(good.status).toBe(0)
    expect((JSON.parse(good.stdout) as PlanReport).algorithm).toBe('switchyard')
    const broken = join(dir, 'broken.pt')
    writeFileSync(broken, readFileSync(STAT).subarray(0, 5000))
    const bad = spawnSync(process.execPath, [bin, 'eplb', 'inspect', broken], { encoding: 'utf8' })
    expect(bad.status).toBe(2)
    expect(bad.stderr).toMatch(/^error SY_TORCH_DAMAGED: .+\nfix: .+\n$/)
  })
})
