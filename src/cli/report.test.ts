// Reports as text and JSON, and the progress line.
import { describe, expect, it } from 'vitest'
import { captureIo } from '../../test/capture-io.js'
import { progressWriter } from './progress.js'
import { bytes, printReport, readable, table } from './report.js'

describe('reports', () => {
  it('print nested data, sizes and lists of objects', () => {
    const text = readable({
      model: { name: 'demo', layers: 6, tied: true, rope: null },
      weightBytes: 1536,
      parameters: 20_123_456,
      eosTokenId: 12_345,
      experts: [
        { layer: 1, count: 32 },
        { layer: 10, count: 8 },
      ],
      names: ['a', 'b'],
      bytesByDtype: { F8_E4M3: 2048 },
      note: 'two\nlines',
    })
    expect(text).toBe(`model
  name    demo
  layers  6
  tied    yes
  rope    –
weight bytes  1.50 KiB (1,536)
parameters    20,123,456
eos token id  12345
experts
  layer  count
  ─────  ─────
      1     32
     10      8
names         a, b
bytes by dtype
  F8_E4M3  2.00 KiB (2,048)
note
  two
  lines
`)
  })

  it('are JSON and nothing else under --json, big numbers included', () => {
    const io = captureIo()
    printReport(io, true, { seed: 2n ** 63n, list: [1] }, () => 'text')
    expect(JSON.parse(io.stdout)).toEqual({ seed: '9223372036854775808', list: [1] })
    expect(io.stderr).toBe('')
  })

  it('align columns whatever colours cells have', () => {
    const red = (text: string) => `\x1b[31m${text}\x1b[39m`
    const [head, rule, row] = table(['name', 'tok/s'], [[red('a'), '12.5']]).split('\n')
    expect([head, rule]).toEqual(['name  tok/s', '────  ─────'])
    expect(row).toBe(`${red('a')}      12.5`)
  })

  it('say sizes in binary units', () => {
    expect([0, 1023, 1024, 10 * 1024, 22_432_352].map(bytes)).toEqual([
      '0 B',
      '1023 B',
      '1.00 KiB',
      '10.0 KiB',
      '21.4 MiB',
    ])
  })
})

describe('progress', () => {
  it('redraws one line on a terminal and takes it away', () => {
    const io = captureIo({ terminal: true, env: { NO_COLOR: '1' } })
    const progress = progressWriter(io)
    progress.update({ stage: 'packing', done: 1, total: 2 })
    progress.notice('hello')
    progress.update({ stage: 'packing', done: 2, total: 2 })
    progress.finish()
    expect(io.stderr).toContain('packing ████████████░░░░░░░░░░░░ 50%')
    expect(io.stderr).toContain('\r\x1b[2Khello\n')
    expect(io.stderr).toContain('100%')
    expect(io.stderr.endsWith('\r\x1b[2K')).toBe(true)
    expect(io.stdout).toBe('')
  })

  it('prints one plain line a stage otherwise', () => {
    const io = captureIo()
    const progress = progressWriter(io)
    for (const stage of ['reading', 'packing']) {
      for (let done = 0; done <= 100; done++) progress.update({ stage, done, total: 100 })
    }
    progress.finish()
    expect(io.stderr).toBe('reading\npacking\n')
  })
})
