// Dummy weights: their distribution, and that they depend on nothing but seed, tensor and index.
import { describe, expect, it } from 'vitest'
import { unpack } from '../../../test/unpack.js'
import { ReferencePacker } from '../../device/cpu/packing.js'
import { f32View, HostMemoryLender } from '../../device/memory.js'
import type { LoadedWeights, WeightPiece, WeightPlan } from '../weight-spec.js'
import { loadDummyWeights } from './index.js'

const packer = new ReferencePacker()
const plan = (weights: WeightPlan['weights']): WeightPlan => ({ weights, skip: () => false })
const matrix = (n: number, k: number, piece: WeightPiece): WeightPlan['weights'][number] => ({
  form: 'matrix',
  name: 'm',
  n,
  k,
  precision: 'model',
  pieces: [[piece]],
})

describe('dummy weights', () => {
  const norm: WeightPlan['weights'][number] = {
    form: 'vector',
    name: 'n',
    length: 3,
    pieces: [{ tensor: 'x.layernorm.weight', shape: [3], rows: { from: 0, count: 3 } }],
  }
  const bias: WeightPlan['weights'][number] = {
    form: 'vector',
    name: 'b',
    length: 2,
    pieces: [{ tensor: 'x.bias', shape: [2], rows: { from: 0, count: 2 } }],
  }
  const whole = matrix(64, 50, { tensor: 'w', shape: [64, 50], rows: { from: 0, count: 64 } })
  const dummy = (weights: WeightPlan['weights'], seed: number): Promise<LoadedWeights> =>
    loadDummyWeights({ plan: plan(weights), dtype: 'f32', packer, lender: new HostMemoryLender(), seed })

  it('norms are 1, biases 0, matrices normal with deviation 0.02', async () => {
    const loaded = await dummy([norm, bias, whole], 1)
    expect([...f32View(loaded.vectors['n']!.span).subarray(0, 3)]).toEqual([1, 1, 1])
    expect([...f32View(loaded.vectors['b']!.span).subarray(0, 2)]).toEqual([0, 0])
    const values = unpack(loaded.matrices['m']!).flat()
    const mean = values.reduce((a, b) => a + b) / values.length
    const deviation = Math.sqrt(values.reduce((a, b) => a + (b - mean) ** 2, 0) / values.length)
    expect(Math.abs(mean)).toBeLessThan(0.002)
    expect(Math.abs(deviation / 0.02 - 1)).toBeLessThan(0.06)
    expect(new Set(values).size).toBeGreaterThan(2800)
  })

  it('one seed, one model; a shard holds the same numbers as the whole', async () => {
    const full = unpack((await dummy([whole], 1)).matrices['m']!)
    expect(unpack((await dummy([whole], 1)).matrices['m']!)).toEqual(full)
    expect(unpack((await dummy([whole], 2)).matrices['m']!)).not.toEqual(full)
    const shard = matrix(2, 10, {
      tensor: 'w',
      shape: [64, 50],
      rows: { from: 7, count: 2, step: 3 },
      columns: { from: 20, count: 10 },
    })
    expect(unpack((await dummy([shard], 1)).matrices['m']!)).toEqual([full[7]!.slice(20, 30), full[10]!.slice(20, 30)])
  })
})
