// Log-softmax and its largest entries against a plain definition.
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { tokenLogprob } from './step-logprobs.js'

describe('the log-probability of a token', () => {
  it('is log-softmax, with the largest entries by value, then by id', () => {
    // Few different values, so that ties are common.
    const logit = fc.constantFrom(-3, -1, 0, 0.5, 2, 7, Number.NEGATIVE_INFINITY)
    const rows = fc.array(logit, { minLength: 1, maxLength: 30 }).filter(row => row.some(Number.isFinite))
    fc.assert(
      fc.property(rows, fc.nat(), fc.integer({ min: 0, max: 20 }), (row, pick, top) => {
        const token = pick % row.length
        const found = tokenLogprob(Float32Array.from(row), token, top)
        const log = Math.log(row.reduce((sum, x) => sum + Math.exp(x), 0))
        expect(found.token).toBe(token)
        if (row[token] === Number.NEGATIVE_INFINITY) expect(found.logprob).toBe(Number.NEGATIVE_INFINITY)
        else expect(found.logprob).toBeCloseTo(row[token]! - log, 10)
        const order = row.map((value, id) => ({ value, id }))
        order.sort((a, b) => (a.value === b.value ? a.id - b.id : b.value - a.value))
        expect(found.top.map(t => t.token)).toEqual(order.slice(0, top).map(o => o.id))
      }),
    )
  })

  it('holds for large logits', () => {
    expect(tokenLogprob(Float32Array.of(1000, 1000), 1, 0).logprob).toBeCloseTo(-Math.LN2, 6)
  })
})
