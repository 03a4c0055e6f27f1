// When two ways of computing a model agree: how far rows of logits may lie apart, and which greedy tokens may be drawn.
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

/** By how much the best logit of a row exceeds that of a token: 0 for the greedy one. */
export const shortfall = (row: Float32Array, token: number): number =>
  row.reduce((best, value) => Math.max(best, value), Number.NEGATIVE_INFINITY) - row[token]!

/**
 * Every greedy draw of one way of computing, judged by the rows that another way has along the same tokens; so no draw is excused by one
 * that went another way before. Rows that lie within the tolerance of each other let a token be at most twice the tolerance short of the best.
 * @param shortfalls of each draw, see `shortfall`
 * @param share of draws for which this must hold: all, or nine in ten where an expert may be chosen differently after a rounding, which
 * is no error but moves a row as far as experts differ
 */
export function expectDrawn(label: string, shortfalls: readonly number[], tolerance: number, share = 1): void {
  const near = shortfalls.filter(short => short <= 2 * tolerance).length
  const best = shortfalls.filter(short => short === 0).length
  console.info(
    `${label}: of ${shortfalls.length} draws ${best} are the other's best, ${near} within ${(2 * tolerance).toPrecision(3)} of it; ` +
      `the worst is ${Math.max(...shortfalls).toPrecision(3)} short`,
  )
  expect(near, label).toBeGreaterThanOrEqual(Math.ceil(share * shortfalls.length))
}
