// How long the driver of waits sleeps.
import { expect, test } from 'vitest'
import { drive, type Step, type Wait } from './wait.js'

/** Ready when `look` says so; nobody ever changes its word. */
const unannounced = (look: () => boolean, sliceMs?: number): Wait => ({
  ready: look,
  words: new Int32Array(new SharedArrayBuffer(4)),
  index: 0,
  describe: () => 'a device',
  peer: -1,
  ...(sliceMs === undefined ? {} : { sliceMs }),
})

function* until(wait: Wait): Step<string> {
  while (!wait.ready()) yield wait
  return 'done'
}

test('a wait that no word announces is looked at again in its own slices, and the abort word with it', () => {
  const end = performance.now() + 300
  let checks = 0
  const wait = unannounced(() => performance.now() >= end, 1)
  expect(drive(until(wait), { spins: 0 }, () => checks++)).toBe('done')
  // Slices of 100 ms would look three times.
  expect(checks).toBeGreaterThan(10)
})

test('no wait sleeps longer than the abort check allows', () => {
  let checks = 0
  const never = unannounced(() => false, 60_000)
  const giveUp = () => {
    if (++checks === 2) throw new Error('the node gave up')
  }
  expect(() => drive(until(never), { spins: 0 }, giveUp)).toThrow('the node gave up')
})
