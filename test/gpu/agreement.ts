// When two ways of computing a model agree: how far rows of logits may lie apart, and which greedy tokens must be equal.
import { expect } from 'vitest'

/**
 * Each row is rounded to 8 bits some ten times a layer (norm, projection, rope, attention, output, and the same again in the experts);
 * roundings are independent, so their relative errors of 2^-9 add up as squares. Three deviations.
 */
export const bf16Bound = (largestLogit: number, layers: number): number =>
  3 * largestLogit * 2 ** -9 * Math.sqrt(10 * layers + 2)

/** Tokens are equal up to the first draw whose two best are closer than twice the tolerance; from there they may differ. */
export function expectGreedy(
  label: string,
  tokens: readonly number[],
  greedy: readonly number[],
  gaps: readonly number[],
  tolerance: number,
): void {
  const free = gaps.findIndex(gap => gap < 2 * tolerance)
  const binding = free < 0 ? greedy.length : free
  const same = tokens.findIndex((token, t) => token !== greedy[t])
  const equal = same < 0 ? greedy.length : same
  console.info(
    `${label}: ${equal} of ${greedy.length} tokens equal, ${binding} had to be; smallest gap ${Math.min(...gaps).toPrecision(3)}`,
  )
  expect(tokens.slice(0, binding)).toEqual(greedy.slice(0, binding))
}
