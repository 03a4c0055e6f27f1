// `bench ep` on real worker threads (from dist/): the workers check every combined row themselves, so a run that ends is right.
import { describe, expect, it } from 'vitest'
import { run } from '../main.js'
import type { EpReport } from './ep.js'
import { benchEp, EP_MODES, median } from './ep-run.js'
import { drawRoutes, expertsOfMember } from './ep-workload.js'

const shape = { ranks: 3, tokens: 40, hidden: 64, experts: 10, topK: 4, skew: 0, seed: 3 }

describe('the workload of bench ep', () => {
  it('counts the rows that its routes bring about', () => {
    const { ids, received, rows, crossing } = drawRoutes(shape)
    const owner = expertsOfMember(10, 3).flatMap((n, r) => Array<number>(n).fill(r))
    const counts = [0, 0, 0]
    let foreign = 0
    ids.forEach((list, source) => {
      for (let t = 0; t < 40; t++) {
        const chosen = [...list.subarray(t * 4, t * 4 + 4)]
        expect(new Set(chosen).size).toBe(4)
        for (const r of new Set(chosen.map(e => owner[e]!))) {
          counts[r] = counts[r]! + 1
          if (r !== source) foreign++
        }
      }
    })
    expect([received, rows, crossing]).toEqual([counts, counts.reduce((a, b) => a + b, 0), foreign])
  })

  it('draws few experts most of the time when skewed', () => {
    const top = (skew: number) => {
      const uses = new Int32Array(10)
      for (const list of drawRoutes({ ...shape, tokens: 300, topK: 1, skew }).ids)
        for (const e of list) uses[e] = uses[e]! + 1
      return Math.max(...uses) / 900
    }
    expect(top(0)).toBeLessThan(0.15)
    expect(top(2)).toBeGreaterThan(0.5)
  })

  it('takes the middle of odd and even numbers of rounds', () => {
    expect([median([3, 1, 2]), median([4, 1, 2, 3])]).toEqual([2, 2.5])
  })
})

describe('bench ep', () => {
  it.each([
    ['f32', 'f32'],
    ['fp8', 'bf16'],
    ['int8', 'f32'],
  ] as const)('moves rows between worker threads, %s there and %s back', async (dispatchWire, combineWire) => {
    const options = { ...shape, modes: EP_MODES, lowLatencyTokens: 7, ringShare: 0.2, rounds: 2 }
    const rows = await benchEp({ ...options, dispatchWire, combineWire, kernels: 'auto' })
    expect(rows.map(r => [r.mode, r.tokens])).toEqual([
      ['normal', 40],
      ['ring', 40],
      ['low_latency', 7],
    ])
    for (const r of rows) {
      expect(r.dispatchUs > 0 && r.combineUs > 0 && r.barrierUs > 0).toBe(true)
      expect(r.crossingBytesPerSecond / r.bytesPerSecond).toBeCloseTo(r.rowsCrossing / r.rowsReceived)
      expect(r.copyShare).toBeCloseTo(r.bytesPerSecond / r.copyBytesPerSecond)
    }
    expect(rows[1]!.ringShare).toBeLessThan(0.5)
  })

  const io = () => {
    const text = { out: '', err: '' }
    const at = { errIsTerminal: false, outIsTerminal: false, columns: 100, env: {}, onSignal: () => () => {} }
    const to = (stream: 'out' | 'err') => (more: string) => {
      text[stream] += more
    }
    return { text, io: { ...at, out: to('out'), err: to('err') } }
  }

  it('prints a table, or JSON alone', async () => {
    const small = ['bench', 'ep', '--ranks', '1,2', '--tokens', '8', '--hidden', '16', '--rounds', '1']
    const plain = io()
    expect(await run(small, plain.io)).toBe(0)
    expect(plain.text.out).toMatch(/2 {2}ring of \d+% +8/)
    const json = io()
    expect(await run([...small, '--mode', 'normal', '--json'], json.io)).toBe(0)
    const report = JSON.parse(json.text.out) as EpReport
    expect(report.results.map(r => [r.ranks, r.mode])).toEqual([
      [1, 'normal'],
      [2, 'normal'],
    ])
  })

  it.each([[['--ranks', '0']], [['--mode', 'fast']], [['--top-k', '9', '--experts', '8']], [['--wire', 'fp4']]])(
    'refuses %j',
    async args => {
      const { text, io: to } = io()
      expect(await run(['bench', 'ep', ...args], to)).toBe(2)
      expect(text.err).toContain('SY_CONFIG_BAD_VALUE')
    },
  )
})
