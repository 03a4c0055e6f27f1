import { expect, it } from 'vitest'
import { splitsOf } from './sample.js'

it('gives a row more blocks the fewer rows there are, a power of two between 8 and 64', () => {
  expect([1, 8, 16, 32, 128, 4096].map(rows => splitsOf(rows, 132))).toEqual([64, 64, 32, 16, 8, 8])
})
