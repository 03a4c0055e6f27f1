// `bench kernels`: flags are checked first, and without a GPU the command says what is missing.
import { describe, expect, it } from 'vitest'
import { figure } from '../../device/cuda/bench/bench.js'
import { searchLibraries } from '../../device/cuda/libraries.js'
import type { CliIo } from '../io.js'
import { run } from '../main.js'

const captured = () => {
  const text = { out: '', err: '' }
  const io: CliIo = {
    out: t => {
      text.out += t
    },
    err: t => {
      text.err += t
    },
    errIsTerminal: false,
    outIsTerminal: false,
    columns: 100,
    env: {},
    onSignal: () => () => {},
  }
  return { io, text }
}

describe('bench kernels', () => {
  it('refuses kernels and devices that do not exist', async () => {
    for (const args of [
      ['--only', 'grouped,gruped'],
      ['--device', 'cuda:x'],
      ['--device', 'cpu'],
    ]) {
      const { io, text } = captured()
      expect(await run(['bench', 'kernels', ...args], io)).toBe(2)
      expect(text.err).toContain(args[0])
      expect(text.out).toBe('')
    }
  })

  it.skipIf(searchLibraries().found.driver.handle !== null)('says what is missing without a GPU', async () => {
    const { io, text } = captured()
    expect(await run(['bench', 'kernels', '--device', 'cuda'], io)).not.toBe(0)
    expect(text.err).toContain('No GPU can be used')
    expect(text.err).toContain('switchyard doctor')
  })
})

describe('figure', () => {
  it('takes the longer of the two times as the limit', () => {
    const time = { medianUs: 300, minUs: 290 }
    const memory = figure('k', 's', time, { bytes: 820e6, flop: 6.4e9 }, 0.1)
    expect(memory).toMatchObject({ limit: 'memory', medianUs: 300, worst: 0.1 })
    expect(memory.limitUs).toBeCloseTo(200, 6)
    const products = figure('k', 's', time, { bytes: 1e6, flop: 80.4e9 }, null)
    expect(products.limit).toBe('tensor cores')
    expect(products.limitUs).toBeCloseTo(100, 6)
  })
})
