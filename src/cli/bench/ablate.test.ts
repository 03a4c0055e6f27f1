// Ablations: which flags each choice has, and a whole run over two real ranks.
import { fileURLToPath } from 'node:url'
import { describe, expect, it } from 'vitest'
import { engineFlags } from '../../config/flags.js'
import type { CliIo } from '../io.js'
import { ablateEngine, ablations, ablationText, parseAxes } from './ablate.js'

const FIXTURE = fileURLToPath(new URL('../../../test/fixtures/checkpoints/mixtral', import.meta.url))
const flags = engineFlags({
  modelPath: FIXTURE,
  tpSize: 2,
  attnDpSize: 2,
  chunkedPrefillSize: 16,
  maxRunningRequests: 4,
})

describe('ablations', () => {
  it('vary one axis at a time', () => {
    const all = ablations(flags, parseAxes('dispatch,padding'))
    expect(all.map(a => `${a.axis} ${a.choice}`)).toEqual([
      ...['none', 'normal', 'low_latency', 'auto'].map(choice => `dispatch ${choice}`),
      ...['auto', 'all_gather', 'all_gatherv', 'all_reduce'].map(choice => `padding ${choice}`),
    ])
    for (const { axis, flags: varied } of all) {
      expect(varied.dpGather === flags.dpGather).toBe(axis === 'dispatch' || varied.dpGather === 'auto')
      if (axis === 'padding') expect(varied.moeA2aBackend).toBe(flags.moeA2aBackend)
    }
    expect(all[0]!.flags).toMatchObject({ moeA2aBackend: 'none', epSize: 2 })
  })

  it('give low-latency alone slots for every step, and leave those of auto', () => {
    const roomy = { ...flags, chunkedPrefillSize: 500, maxRunningRequests: 50 }
    const slots = ablations(roomy, ['dispatch']).map(a => a.flags.deepepNumMaxDispatchTokensPerRank)
    expect(slots).toEqual([128, 128, 550, 128])
  })

  it('name the axes there are', () => {
    for (const text of ['dispatch,speed', '', 'padding,padding']) {
      expect(() => parseAxes(text)).toThrow(/--ablate is .*some of dispatch, padding/)
    }
  })

  it('run for real: each choice took the steps it says', async () => {
    const options = { promptTokens: 6, outputTokens: 5, seed: 1, batches: [2] }
    const io: CliIo = {
      ...{ out: () => {}, err: () => {}, errIsTerminal: false, outIsTerminal: false, columns: 80, env: {} },
      onSignal: () => () => {},
    }
    const report = await ablateEngine(io, flags, options, ['dispatch'])
    const modes = report.results.map(({ choice, dispatchSteps: steps }) => [
      choice,
      ...Object.entries(steps).flatMap(([mode, n]) => (n > 0 ? [mode] : [])),
    ])
    expect(modes).toEqual([
      ['none', 'none'],
      ['normal', 'normal'],
      ['low_latency', 'low_latency'],
      ['auto', 'normal', 'low_latency'],
    ])
    for (const row of report.results) expect(row.decodeTokensPerSecond).toBeGreaterThan(0)
    const text = ablationText(report)
    expect(text.split('\n').filter(line => line.startsWith('dispatch ')).length).toBe(4)
    expect(text).toContain('mixtral over 2 ranks')
  }, 60_000)
})
