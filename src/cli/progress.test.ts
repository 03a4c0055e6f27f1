// What a long stage leaves behind: its bytes and its seconds.
import { describe, expect, it } from 'vitest'
import { captureIo } from '../../test/capture-io.js'
import { progressWriter } from './progress.js'

describe('progress', () => {
  it.each([true, false])('tells bytes and seconds of a stage of two seconds, each time (terminal: %s)', terminal => {
    const io = captureIo({ terminal })
    let now = 0
    const writer = progressWriter(io, () => now)
    for (const _ of [1, 2]) {
      writer.update({ stage: 'packing weights', done: 0, total: 8e9 })
      now += 2000
      writer.update({ stage: 'packing weights', done: 8e9, total: 8e9 })
    }
    writer.finish()
    expect(io.stderr.match(/packing weights: 7\.45 GiB in 2\.0 s\n/g)).toHaveLength(2)
  })

  it('says nothing of a short one', () => {
    const io = captureIo()
    const writer = progressWriter(io)
    writer.update({ stage: 'packing weights', done: 0, total: 5 })
    writer.update({ stage: 'packing weights', done: 5, total: 5 })
    writer.finish()
    expect(io.stderr).toBe('packing weights\n')
  })
})
