// Checked expert counts: the only way from a user's numbers to `Counts`. Everything behind it relies on finite,
// non-negative values whose sum over steps is exact. Not here: reading files.
import { EplbError } from './errors.js'
import type { Counts } from './types.js'

/** Sums beyond 2^53 no longer count single tokens. */
const LIMIT = Number.MAX_SAFE_INTEGER

export interface FlatCounts {
  readonly steps: number
  readonly layers: number
  readonly experts: number
  /** [steps][layers][experts] row-major. */
  readonly data: ArrayLike<number>
}

/**
 * Counts from [layers][experts] (one step), [steps][layers][experts], or a flat array with its sizes.
 * @throws EplbError SY_EPLB_COUNTS_* when empty, ragged, of a wrong size, negative, not finite or too large to sum exactly.
 */
export function makeCounts(
  values: FlatCounts | readonly (readonly number[])[] | readonly (readonly (readonly number[])[])[],
): Counts {
  if ('data' in values) return checked(values.steps, values.layers, values.experts, Float64Array.from(values.data))
  const first = values[0]
  const nested = (
    first !== undefined && Array.isArray(first[0]) ? values : [values]
  ) as readonly (readonly (readonly number[])[])[]
  const steps = nested.length
  const layers = nested[0]?.length ?? 0
  const experts = nested[0]?.[0]?.length ?? 0
  const data = new Float64Array(steps * layers * experts)
  for (const [s, step] of nested.entries()) {
    if (!Array.isArray(step) || step.length !== layers) throw ragged(`step ${s}`, step, layers)
    for (const [l, row] of step.entries()) {
      if (!Array.isArray(row) || row.length !== experts) throw ragged(`step ${s}, layer ${l}`, row, experts)
      for (let e = 0; e < experts; e++) {
        const value: unknown = row[e]
        data[(s * layers + l) * experts + e] = typeof value === 'number' ? value : Number.NaN
      }
    }
  }
  return checked(steps, layers, experts, data)
}

function ragged(where: string, found: unknown, expected: number): EplbError {
  return new EplbError('SY_EPLB_COUNTS_RAGGED', { where, found: Array.isArray(found) ? found.length : 'no', expected })
}

function checked(steps: number, layers: number, experts: number, data: Float64Array): Counts {
  for (const size of [steps, layers, experts])
    if (!Number.isSafeInteger(size) || size < 1) throw new EplbError('SY_EPLB_COUNTS_EMPTY', { steps, layers, experts })
  const expected = steps * layers * experts
  if (data.length !== expected)
    throw new EplbError('SY_EPLB_COUNTS_SIZE', { found: data.length, steps, layers, experts, expected })
  const sums = new Float64Array(layers)
  for (let i = 0; i < expected; i++) {
    const value = data[i]!
    const layer = Math.floor(i / experts) % layers
    if (!(value >= 0 && value < Number.POSITIVE_INFINITY)) {
      throw new EplbError('SY_EPLB_COUNTS_VALUE', {
        step: Math.floor(i / (layers * experts)),
        layer,
        expert: i % experts,
        value,
      })
    }
    sums[layer]! += value
  }
  for (const [layer, sum] of sums.entries())
    if (sum > LIMIT) throw new EplbError('SY_EPLB_COUNTS_OVERFLOW', { layer, sum, limit: LIMIT })
  return Object.freeze({ steps, layers, experts, data })
}

/** Counts summed over steps: [layers][experts]. */
export function sumSteps(counts: Counts): Float64Array {
  const size = counts.layers * counts.experts
  const out = new Float64Array(size)
  for (let s = 0; s < counts.steps; s++) for (let i = 0; i < size; i++) out[i]! += counts.data[s * size + i]!
  return out
}

/** Steps [from, to) as their own counts; shares memory. */
export function stepRange(counts: Counts, from: number, to: number): Counts {
  const first = Math.max(0, from)
  const last = Math.min(counts.steps, to)
  if (!(first < last))
    throw new EplbError('SY_EPLB_COUNTS_EMPTY', {
      steps: Math.max(0, last - first),
      layers: counts.layers,
      experts: counts.experts,
    })
  const size = counts.layers * counts.experts
  return Object.freeze({
    steps: last - first,
    layers: counts.layers,
    experts: counts.experts,
    data: counts.data.subarray(first * size, last * size),
  })
}
