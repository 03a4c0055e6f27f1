// What `switchyard explain` prints for people: that it fits a screen, and that every collective says why it is there.
import { describe, expect, it } from 'vitest'
import { captureIo } from '../../test/capture-io.js'
import { run } from './main.js'

const fixture = new URL('../../test/fixtures/checkpoints/deepseek_v3', import.meta.url).pathname

const explained = async (...flags: string[]): Promise<string> => {
  const io = captureIo()
  expect([await run(['explain', fixture, ...flags], io), io.stderr]).toEqual([0, ''])
  return io.stdout
}

describe('the text of explain', () => {
  it.each([
    '',
    '--tp-size 4 --attn-dp-size 2 --ep-size 4',
    '--tp-size 8 --attn-dp-size 2 --ep-size 4',
    '--tp-size 16 --attn-dp-size 16 --ep-size 16',
    '--tp-size 4 --attn-dp-size 4 --ep-size 4 --moe-a2a-backend deepep',
  ])('fits 120 columns: %s', async flags => {
    const lines = (await explained(...flags.split(' ').filter(f => f !== ''))).split('\n')
    expect(lines.filter(line => line.length > 120)).toEqual([])
  })

  it('gives each collective the number of a reason that stands below', async () => {
    const text = await explained('--tp-size', '4', '--attn-dp-size', '2', '--ep-size', '4')
    const numbers = (pattern: RegExp) => [...new Set([...text.matchAll(pattern)].map(m => Number(m[1])))].sort()
    const named = numbers(/^\w+ .* \((\d+)\)$/gm)
    expect(named.length).toBeGreaterThan(2)
    expect(numbers(/^\((\d+)\) \w/gm)).toEqual(named)
    expect(text).toMatch(/^gather_columns .*\((\d)\)$[\s\S]*^\(\1\) the vocabulary is cut over all ranks/m)
  })
})
