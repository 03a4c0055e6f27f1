// Rotary frequencies from their parameters: pure formulas, in the single precision in which Hugging Face computes them.
// Sources: RoPE (arXiv 2104.09864), YaRN (2309.00071, with the mscale of DeepSeek-V2, 2405.04434), Llama 3.1's wavelength
// bands; conventions of Hugging Face transformers 5 (modeling_rope_utils). Reading the fields is rope-config.ts.

const f32 = Math.fround

/** theta^(-2i/width) for i in [0, width/2), rounded to f32 at each step. */
export function plainFrequencies(theta: number, width: number): number[] {
  const out: number[] = []
  for (let i = 0; i < width; i += 2) out.push(f32(1 / positionPeriod(theta, i, width)))
  return out
}

const positionPeriod = (theta: number, i: number, width: number): number => f32(theta ** f32(i / width))

/** All frequencies divided by one factor. */
export const linearFrequencies = (theta: number, width: number, factor: number): number[] =>
  plainFrequencies(theta, width).map(f => f32(f / factor))

export interface YarnParameters {
  readonly factor: number
  /** Context length before stretching. */
  readonly originalPositions: number
  /** Turns within the original context from which on a pair is left alone, and up to which it is stretched in full. */
  readonly betaFast: number
  readonly betaSlow: number
  /** Round the two limits outward to whole pairs. */
  readonly truncate: boolean
}

/** YaRN's softmax temperature: 0.1 · mscale · ln(factor) + 1, or 1 for a factor of at most 1. */
export const yarnMscale = (factor: number, mscale: number): number =>
  factor <= 1 ? 1 : 0.1 * mscale * Math.log(factor) + 1

/** Fast pairs keep their frequency, slow ones are divided by `factor`, those between are blended linearly. */
export function yarnFrequencies(theta: number, width: number, p: YarnParameters): number[] {
  const pairOfTurns = (turns: number): number =>
    (width * Math.log(p.originalPositions / (turns * 2 * Math.PI))) / (2 * Math.log(theta))
  const round = p.truncate ? { down: Math.floor, up: Math.ceil } : { down: Number, up: Number }
  const low = Math.max(round.down(pairOfTurns(p.betaFast)), 0)
  let high = Math.min(round.up(pairOfTurns(p.betaSlow)), width - 1)
  if (low === high) high += 0.001
  const out: number[] = []
  for (let i = 0; i < width; i += 2) {
    const period = positionPeriod(theta, i, width)
    const kept = f32(1 / period)
    const stretched = f32(1 / f32(p.factor * period))
    const ramp = Math.min(1, Math.max(0, f32(f32(i / 2 - low) / f32(high - low))))
    const keep = f32(1 - ramp)
    out.push(f32(f32(stretched * f32(1 - keep)) + f32(kept * keep)))
  }
  return out
}

export interface Llama3Parameters {
  readonly factor: number
  readonly lowFreqFactor: number
  readonly highFreqFactor: number
  readonly originalPositions: number
}

/** Wavelengths beyond originalPositions/lowFreqFactor are stretched, those below …/highFreqFactor kept, blended between. */
export function llama3Frequencies(theta: number, width: number, p: Llama3Parameters): number[] {
  return plainFrequencies(theta, width).map(f => {
    const wavelength = f32((2 * Math.PI) / f)
    if (wavelength > p.originalPositions / p.lowFreqFactor) return f32(f / p.factor)
    if (wavelength < p.originalPositions / p.highFreqFactor) return f
    const smooth = f32(
      f32(f32(p.originalPositions / wavelength) - p.lowFreqFactor) / (p.highFreqFactor - p.lowFreqFactor),
    )
    return f32(f32(f32(f32(1 - smooth) * f) / p.factor) + f32(smooth * f))
  })
}
