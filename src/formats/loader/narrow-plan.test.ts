// Routers stay bf16 where that loses nothing, and only there.
import { describe, expect, it } from 'vitest'
import type { MatrixSpec, WeightPlan } from '../weight-spec.js'
import { narrowPlan } from './narrow-plan.js'

const matrix = (name: string, precision: MatrixSpec['precision'], tensors: readonly string[]): MatrixSpec => ({
  form: 'matrix',
  name,
  n: tensors.length,
  k: 4,
  precision,
  pieces: [tensors.map(tensor => ({ tensor, shape: [1, 4], rows: { from: 0, count: 1 } }))],
})

describe('narrowPlan', () => {
  it('changes matrices asked for in f32 whose tensors are all bf16', () => {
    const plan: WeightPlan = {
      weights: [
        matrix('router', 'f32', ['a']),
        matrix('mixed', 'f32', ['a', 'wide']),
        matrix('wide', 'f32', ['wide']),
        matrix('linear', 'model', ['wide']),
      ],
      skip: () => false,
    }
    const narrowed = narrowPlan(plan, tensor => tensor !== 'wide')
    expect(narrowed.weights.map(w => w.form === 'matrix' && w.precision)).toEqual(['model', 'f32', 'f32', 'model'])
    expect(narrowed.weights.slice(1)).toEqual(plan.weights.slice(1))
    expect(narrowed.skip).toBe(plan.skip)
  })
})
