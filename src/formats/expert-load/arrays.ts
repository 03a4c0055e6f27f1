// Arrays of numbers from any of the file formats, as one flat row-major array with its shape. Invariant: a JSON array is
// rectangular and all numbers when it gets through here; where it is not, the error names the place.

import { TorchTensor } from '../torch/index.js'
import { ExpertLoadError } from './errors.js'

export interface FlatArray {
  readonly shape: readonly number[]
  /** Row-major. */
  readonly values: Float64Array
}

/** A tensor or nested JSON array as a flat array; undefined when it is neither. */
export function flatArray(file: string, what: string, value: unknown): FlatArray | undefined {
  if (value instanceof TorchTensor) return { shape: value.shape, values: value.toFloat64() }
  return Array.isArray(value) ? flattenNested(file, what, value) : undefined
}

/**
 * Nested arrays of numbers as a flat array; the first entry at each depth sets the shape.
 * @throws ExpertLoadError SY_LOAD_RAGGED, SY_LOAD_VALUE, SY_LOAD_EMPTY
 */
function flattenNested(file: string, what: string, nested: readonly unknown[]): FlatArray {
  const shape: number[] = []
  for (let level: unknown = nested; Array.isArray(level) && shape.length < 4; level = level[0]) shape.push(level.length)
  if (shape.length > 3) {
    const expected = 'at most three levels of arrays'
    throw new ExpertLoadError('SY_LOAD_SHAPE', { file, what, shape: `${shape.join(', ')}, …`, expected })
  }
  if (shape.includes(0)) throw new ExpertLoadError('SY_LOAD_EMPTY', { file, what })
  const values: number[] = []
  const path: number[] = []
  const visit = (level: unknown, depth: number): void => {
    if (depth === shape.length) {
      if (typeof level !== 'number' || !Number.isFinite(level)) {
        throw new ExpertLoadError('SY_LOAD_VALUE', { file, where: `${what}${at(path)}`, value: shown(level) })
      }
      values.push(level)
      return
    }
    const expected = shape[depth]!
    if (!Array.isArray(level) || level.length !== expected) {
      const found = Array.isArray(level) ? level.length : 'no'
      throw new ExpertLoadError('SY_LOAD_RAGGED', { file, what, where: `entry ${at(path)}`, found, expected })
    }
    for (let i = 0; i < expected; i++) {
      path.push(i)
      visit(level[i], depth + 1)
      path.pop()
    }
  }
  visit(nested, 0)
  return { shape, values: Float64Array.from(values) }
}

const at = (path: readonly number[]) => path.map(i => `[${i}]`).join('')

function shown(value: unknown): string {
  if (value === null) return 'null (NaN?)'
  if (typeof value === 'number') return String(value)
  if (typeof value === 'string') return `the text "${value.slice(0, 20)}"`
  return Array.isArray(value) ? 'an array' : typeof value
}

/**
 * Counts of shape [layers][experts] or [steps][layers][experts], checked.
 * @throws ExpertLoadError SY_LOAD_SHAPE, SY_LOAD_EMPTY, SY_LOAD_VALUE
 */
export function countsOf(file: string, what: string, array: FlatArray, last = 'experts') {
  const { shape, values } = array
  if (shape.length < 2 || shape.length > 3) {
    throw new ExpertLoadError('SY_LOAD_SHAPE', {
      file,
      what,
      shape: shape.join(', '),
      expected: `[steps][layers][${last}] or [layers][${last}]`,
    })
  }
  const [steps, layers, experts] = (shape.length === 3 ? shape : [1, ...shape]) as [number, number, number]
  if (values.length === 0) throw new ExpertLoadError('SY_LOAD_EMPTY', { file, what })
  for (let i = 0; i < values.length; i++) {
    const value = values[i]!
    if (value >= 0 && value < Infinity) continue
    const step = Math.floor(i / (layers * experts))
    const layer = Math.floor(i / experts) % layers
    const where = `${what} of step ${step}, layer ${layer}, expert ${i % experts}`
    throw new ExpertLoadError('SY_LOAD_VALUE', { file, where, value: String(value) })
  }
  return { steps, layers, experts, values }
}

/** Throws SY_LOAD_OVERFLOW when the values' sum is beyond exact integers. */
export function checkSum(file: string, values: Float64Array): number {
  let sum = 0
  for (const value of values) sum += value
  if (sum > Number.MAX_SAFE_INTEGER) throw new ExpertLoadError('SY_LOAD_OVERFLOW', { file, sum: sum.toExponential(3) })
  return sum
}
