// Stored figures beside `bench ep --device cuda`: they are found for their shapes only, and runs on other links are void.
import { expect, it } from 'vitest'
import { storedDeepEp, storedGemmUs, voidReason } from './ep-stored.js'

const shape = { tokens: 4096, hidden: 7168, experts: 256, skew: 0 }

it('finds figures for the shapes they were measured at, and for no other', () => {
  expect(storedDeepEp('normal', shape)?.combine).toBe(240.8)
  expect(storedDeepEp('lowLatency', { ...shape, tokens: 128 })?.lowLatencyPairFp8).toBe(66.2)
  for (const other of [{ tokens: 128 }, { hidden: 4096 }, { experts: 64 }, { skew: 1 }])
    expect(storedDeepEp('normal', { ...shape, ...other })).toBeUndefined()
})

it('estimates products by the nearest number of rows an expert', () => {
  const flops = 2 * 32768 * 4096 * 7168
  expect(storedGemmUs(128, 32768, 4096, 7168)).toBeCloseTo(flops / 764e6, 6)
  expect(storedGemmUs(8, 32768, 4096, 7168)).toBeCloseTo(flops / 790e6, 6)
  expect(storedGemmUs(128, 32768, 4096, 7000)).toBeUndefined()
})

it('is void when a copy is more than 5% off', () => {
  for (const fine of [367, 386, 405]) expect(voidReason(fine)).toBeUndefined()
  for (const off of [366, 406, 25]) expect(voidReason(off)).toMatch(/not comparable/)
})
