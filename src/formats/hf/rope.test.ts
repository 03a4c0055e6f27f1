// Rotary frequencies against formulas written independently, in double precision, as the papers state them.
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { GqaSpec, MlaSpec } from '../model-spec.js'
import { readModelSpec } from './index.js'
import { linearFrequencies, llama3Frequencies, plainFrequencies, yarnFrequencies, yarnMscale } from './rope.js'

/** YaRN by parts (arXiv 2309.00071, §3.2): a ramp over pair indices between two counts of turns in the original context. */
function yarnOfThePaper(theta: number, width: number, factor: number, original: number, whole: boolean): number[] {
  const pairAt = (turns: number): number => {
    // The pair whose wavelength is original / turns: theta^(2d/width) · 2π = original / turns.
    const wavelength = original / turns
    return (width / 2) * (Math.log(wavelength / (2 * Math.PI)) / Math.log(theta))
  }
  let first = pairAt(32)
  let last = pairAt(1)
  if (whole) {
    first = Math.floor(first)
    last = Math.ceil(last)
  }
  first = Math.max(first, 0)
  last = Math.min(last, width - 1)
  return Array.from({ length: width / 2 }, (_, d) => {
    const frequency = Math.exp((-2 * d * Math.log(theta)) / width)
    const stretched = d <= first ? 0 : d >= last ? 1 : (d - first) / (last - first)
    return frequency * (1 - stretched) + (frequency / factor) * stretched
  })
}

const close = (actual: readonly number[], expected: readonly number[]): void => {
  expect(actual).toHaveLength(expected.length)
  for (const [i, value] of expected.entries()) expect(Math.abs(actual[i]! / value - 1)).toBeLessThan(1e-6)
}

describe('rotary frequencies', () => {
  it('plain and linear', () => {
    close(plainFrequencies(10_000, 8), [1, 0.1, 0.01, 0.001])
    close(linearFrequencies(10_000, 8, 4), [0.25, 0.025, 0.0025, 0.00025])
  })

  it('deepseek_v3_yarn_noqlora: frequencies, attention factor 1, softmax scale with mscale squared', () => {
    const attention = readModelSpec('test/fixtures/checkpoints/deepseek_v3_yarn_noqlora').spec.layers[0]!
      .attention as MlaSpec
    close(attention.rope.inverseFrequencies, yarnOfThePaper(10_000, 8, 4, 64, true))
    expect(attention.rope.attentionFactor).toBe(1)
    const mscale = 1 + 0.1 * Math.log(4)
    expect(attention.scale).toBeCloseTo((mscale * mscale) / Math.sqrt(16 + 8), 12)
  })

  it('gpt_oss: limits not rounded, attention factor 0.1 ln 32 + 1, plain softmax scale', () => {
    const attention = readModelSpec('test/fixtures/checkpoints/gpt_oss').spec.layers[0]!.attention as GqaSpec
    close(attention.rope.inverseFrequencies, yarnOfThePaper(150_000, 16, 32, 4096, false))
    expect(attention.rope.attentionFactor).toBeCloseTo(1.3465735902799727, 12)
    expect(attention.scale).toBe(0.25)
  })

  it('yarn equals the paper for any sizes', () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 2, max: 64 }),
        fc.constantFrom(10_000, 150_000, 1e6),
        fc.double({ min: 1, max: 64, noNaN: true }),
        fc.constantFrom(256, 4096, 32_768),
        fc.boolean(),
        (pairs, theta, factor, original, truncate) => {
          const p = { factor, originalPositions: original, betaFast: 32, betaSlow: 1, truncate }
          const ours = yarnFrequencies(theta, 2 * pairs, p)
          const paper = yarnOfThePaper(theta, 2 * pairs, factor, original, truncate)
          for (const [i, value] of paper.entries()) expect(Math.abs(ours[i]! / value - 1)).toBeLessThan(1e-5)
        },
      ),
      { numRuns: 300, seed: 5 },
    )
  })

  it('mscale grows with the log of the factor and never falls below 1', () => {
    expect(yarnMscale(40, 0.9)).toBeCloseTo(1 + 0.09 * Math.log(40), 12)
    expect(yarnMscale(1, 5)).toBe(1)
    expect(yarnMscale(0.5, 5)).toBe(1)
  })

  it('llama3: long waves stretched, short kept, continuous between', () => {
    const p = { factor: 8, lowFreqFactor: 1, highFreqFactor: 4, originalPositions: 8192 }
    const plain = plainFrequencies(500_000, 128)
    const ours = llama3Frequencies(500_000, 128, p)
    let kept = 0
    let stretched = 0
    let blended = 0
    for (const [i, f] of plain.entries()) {
      const turns = (8192 * f) / (2 * Math.PI)
      const weight = Math.min(1, Math.max(0, (turns - 1) / 3))
      expect(Math.abs(ours[i]! / (f * weight + (f / 8) * (1 - weight)) - 1)).toBeLessThan(1e-5)
      if (weight === 1) kept++
      else if (weight === 0) stretched++
      else blended++
    }
    expect([kept > 20, stretched > 20, blended > 1]).toEqual([true, true, true])
  })
})
