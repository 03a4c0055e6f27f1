// Traces of real models: every rank in one thread with a clock that counts, so that a trace is a fact and not a measurement;
// then the command, with real threads.
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import { run } from '../../src/cli/main.js'
import { arrivalsOf, chromeEvents, summarize, type Trace } from '../../src/trace/index.js'
import { captureIo } from '../capture-io.js'
import { drawing, fixturePath, type GivenFlags, loadOneThread } from './harness.js'

const temp = mkdtempSync(join(tmpdir(), 'switchyard-trace-'))
afterAll(() => rmSync(temp, { recursive: true, force: true }))

const DP2: GivenFlags = { tpSize: 2, attnDpSize: 2, epSize: 2 }
const requests = [drawing('a', [1, 2, 3, 4, 5], 4), drawing('b', [9, 8], 2)]

async function tracedRun(
  given: GivenFlags,
  seed = 3,
): Promise<{ trace: Trace; tokens: readonly (readonly number[])[] }> {
  const engine = await loadOneThread(fixturePath('qwen3_moe'), given)
  let time = 0
  const results = engine.run(requests, [0, 1], seed, { records: 10_000, clock: { now: () => time++ } })
  return { trace: engine.lastTrace!, tokens: [...results.values()].map(r => r.tokens) }
}

describe('a trace of all ranks in one thread', () => {
  it('changes no token, and is the same trace for the same order of ranks', async () => {
    const engine = await loadOneThread(fixturePath('qwen3_moe'), DP2)
    const plain = [...engine.run(requests, [0, 1], 3).values()].map(r => r.tokens)
    expect(engine.lastTrace).toBe(null)
    const first = await tracedRun(DP2)
    expect(first.tokens).toEqual(plain)
    expect((await tracedRun(DP2)).trace.ranks.map(r => r.events)).toEqual(first.trace.ranks.map(r => r.events))
  })

  it('has every operation of the program that ran, in order, within its step, on the rows of the plan', async () => {
    const { trace } = await tracedRun(DP2)
    const steps = trace.ranks.map(r => r.events.steps.filter(s => s.rows !== null))
    // a: a prompt and three tokens; b: a prompt and one. Both begin in the first step.
    expect(steps.map(list => list.map(s => s.rows!.tokens))).toEqual([
      [5, 1, 1, 1],
      [2, 1, 0, 0],
    ])
    for (const rank of trace.ranks) {
      expect(rank.events.lost).toBe(0)
      for (const step of rank.events.steps) {
        if (!step.rows) continue
        const { operations } = rank.programs[step.program]!
        expect(step.operations.map(o => o.operation)).toEqual([...operations.keys()])
        let last = step.start
        for (const op of step.operations) {
          expect(op.start).toBeGreaterThan(last)
          last = op.end
        }
        expect(last).toBeLessThan(step.end)
        const embed = step.operations.find(o => operations[o.operation]!.kind === 'embed')!
        expect(embed.rows).toBe(step.rows.tokens)
      }
    }
    expect(steps[0]!.map(s => s.step)).toEqual(steps[1]!.map(s => s.step))
  })

  it('says how many bytes gathers and reductions move', async () => {
    const { trace } = await tracedRun(DP2)
    const hidden = JSON.parse(readFileSync(join(fixturePath('qwen3_moe'), 'config.json'), 'utf8')).hidden_size as number
    const first = [...chromeEvents(trace)].filter(
      e => e.ph === 'X' && e.cat === 'operation' && e.name === 'reduce_norm' && e.args['step'] === 1,
    )
    expect(first.length).toBeGreaterThan(0)
    for (const e of first) {
      if (e.ph !== 'X') continue
      // 7 rows of both ranks leave; of the other rank's sum the own 5 or 2 come in.
      const own = e.pid === 0 ? 5 : 2
      expect([e.args['bytes_sent'], e.args['bytes_received']]).toEqual([7 * hidden * 4, own * hidden * 4])
    }
  })

  it.each(['normal', 'low_latency'] as const)(
    'of a %s dispatch: rows, bytes both ways, and who sent what',
    async mode => {
      const { trace } = await tracedRun({ ...DP2, moeA2aBackend: 'deepep', deepepMode: mode })
      const bytes = { dispatch: [0, 0], combine: [0, 0] }
      const rows = trace.ranks.map(() => 0)
      for (const rank of trace.ranks) {
        for (const step of rank.events.steps) {
          for (const op of step.operations) {
            const { kind, sentBy, group } = rank.programs[step.program]!.operations[op.operation]!
            if (kind === 'dispatched_experts') rows[rank.rank]! += op.rows
            if (kind === 'dispatch_receive' || kind === 'combine_receive') {
              expect(rank.programs[step.program]!.operations[sentBy]!.kind).toBe(kind.replace('receive', 'send'))
              expect(group).toEqual([0, 1])
            }
            const sums = kind.startsWith('dispatch_')
              ? bytes.dispatch
              : kind.startsWith('combine_')
                ? bytes.combine
                : null
            if (!sums) continue
            sums[0]! += Math.max(0, op.sent)
            sums[1]! += Math.max(0, op.received)
          }
        }
      }
      // What leaves one rank comes in at another, and every row that came goes back.
      expect(bytes.dispatch[0]).toBe(bytes.dispatch[1])
      expect(bytes.combine[0]).toBe(bytes.combine[1])
      expect(bytes.dispatch[0]).toBeGreaterThan(0)
      for (const count of rows) expect(count).toBeGreaterThan(0)
      const labels = new Set([...arrivalsOf(trace)].map(a => a.label))
      expect([...labels].filter(l => /dispatch|combine/.test(l)).sort()).toEqual([
        `${mode} combine: receive`,
        `${mode} dispatch: receive`,
      ])
    },
  )
})

describe('switchyard trace', () => {
  it('writes a timeline of the steps of real threads, and a summary', async () => {
    const out = join(temp, 'trace.json')
    const io = captureIo()
    const sizes = ['--tp-size', '2', '--attn-dp-size', '2', '--ep-size', '2']
    const small = ['--max-total-tokens', '1024', '--context-length', '64', '--max-running-requests', '4']
    const args = ['--input-ids', '1,2,3', '--steps', '3', '--warmup-steps', '1', '--json', '--out', out]
    const code = await run(['trace', fixturePath('qwen3_moe'), ...sizes, ...small, ...args], io)
    expect([code, io.stderr.replace(/packing weights.*\n?/g, '')]).toEqual([0, ''])
    const report = JSON.parse(io.stdout)
    const file = JSON.parse(readFileSync(out, 'utf8'))
    expect(report).toMatchObject({ file: out, ranks: 2, lost: 0, events: file.traceEvents.length })
    // A request on each attention-DP rank; they need not begin in the same step.
    expect(report.steps).toBeGreaterThanOrEqual(3)
    expect(report.steps).toBeLessThanOrEqual(6)
    expect(report.kinds.reduce((sum: number, k: { share: number }) => sum + k.share, 0)).toBeCloseTo(1, 6)
    const drawn = file.traceEvents.filter((e: { name: string }) => e.name === 'sample')
    expect(drawn.length).toBe(2 * report.steps)
    const begins = file.traceEvents.filter((e: { ph: string }) => e.ph === 's')
    const ends = new Map(file.traceEvents.flatMap((e: { ph: string; id: number }) => (e.ph === 'f' ? [[e.id, e]] : [])))
    expect(begins.length).toBeGreaterThan(0)
    for (const { id, ts } of begins) expect((ends.get(id) as { ts: number }).ts).toBeGreaterThanOrEqual(ts)
  })

  it('prints where the time went, for people', async () => {
    const io = captureIo()
    const args = ['--input-ids', '1,2,3', '--steps', '2', '--warmup-steps', '0', '--out', join(temp, 'one.json')]
    expect(
      await run(
        ['trace', fixturePath('qwen3_moe'), '--max-total-tokens', '256', '--context-length', '64', ...args],
        io,
      ),
    ).toBe(0)
    expect(io.stdout).toMatch(/^2 steps of 1 rank in /)
    expect(io.stdout).toMatch(/experts +\d/)
    expect(io.stdout).not.toMatch(/who waited/)
    expect(io.stdout).toMatch(/ui\.perfetto\.dev\n$/)
  })

  it('says before the model loads that the file cannot be written, or what is missing', async () => {
    const io = captureIo()
    const args = ['trace', fixturePath('qwen3_moe'), '--input-ids', '1']
    expect(await run([...args, '--out', join(temp, 'no', 'such', 'trace.json')], io)).toBe(2)
    expect(io.stderr).toMatch(/--out/)
    expect(io.stderr).not.toMatch(/packing/)
    expect(await run(['trace', fixturePath('qwen3_moe')], captureIo())).toBe(2)
  })
})

describe('summaries', () => {
  it('of a real run name who waited for whom, at places of the program', async () => {
    const { trace } = await tracedRun(DP2, 8)
    const { waits, steps, rows } = summarize(trace)
    expect(steps).toBe(4)
    expect(rows).toBeGreaterThanOrEqual(7 + 2 + 1 + 1)
    expect(waits.length).toBeGreaterThan(0)
    for (const { rank, source, times, us } of waits) {
      expect(rank + source).toBe(1)
      expect(times).toBeGreaterThan(0)
      expect(us).toBeGreaterThan(0)
    }
  })
})
