// Experts drawn instead of routed: distinct, reproducible, even.
import { describe, expect, it } from 'vitest'
import { drawExperts } from './fake-routing.js'

describe('experts drawn evenly', () => {
  it('are distinct in a row, depend on layer, row and position, and fall evenly', () => {
    const [experts, topK, rows] = [128, 8, 2000]
    const counts = new Int32Array(experts)
    const seen = new Set<string>()
    for (let row = 0; row < rows; row++) {
      const out = new Int32Array(topK)
      drawExperts(row % 3, row, 512 + (row >> 4), experts, out)
      expect(new Set(out).size).toBe(topK)
      seen.add(out.join())
      for (const e of out) counts[e] = counts[e]! + 1
    }
    expect(seen.size).toBe(rows)
    // Each expert is one of topK with probability topK / experts: 125 times on average, deviation 10.8. Six deviations.
    const mean = (rows * topK) / experts
    const deviation = Math.sqrt(mean * (1 - topK / experts))
    for (const count of counts) expect(Math.abs(count - mean)).toBeLessThan(6 * deviation)
  })
})
