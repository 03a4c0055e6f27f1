// Drawing of tokens: ties, limits, the distribution itself, log-probabilities, and one answer for one seed whatever the
// implementation: draws are compared with a plain computation from runtime/random.ts.
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { gumbel } from '../../runtime/random.js'
import { at, fill, type Implementation, noise, rowsOf, type TestRows } from './bench.suite.js'

interface Draw {
  readonly temperature: number
  readonly topP?: number
  readonly minP?: number
  readonly topK?: number
  readonly seed?: readonly [low: number, high: number]
  readonly position?: number
}

function paramsOf(draws: readonly Draw[]): TestRows {
  const params = rowsOf(draws.length, 8)
  const words = new Uint32Array(params.i.buffer, params.i.byteOffset, params.i.length)
  draws.forEach((d, r) => {
    params.f.set([d.temperature, d.topP ?? 1, d.minP ?? 0, d.topK ?? 0], at(params, r))
    words.set([d.seed?.[0] ?? 1, d.seed?.[1] ?? 0, d.position ?? 0, 0], at(params, r, 4))
  })
  return params
}

/** The rules of Ops.sample on plain arrays. */
function allowed(logits: readonly number[], d: Draw): number[] {
  const temperature = Math.fround(d.temperature)
  const most = Math.max(...logits)
  const mass = logits.map(x => Math.exp(x / temperature - most / temperature))
  let ids = [...logits.keys()].sort((i, j) => logits[j]! - logits[i]! || i - j)
  if (d.topK) ids = ids.slice(0, d.topK)
  if (d.topP !== undefined && d.topP < 1) {
    const total = ids.reduce((s, v) => s + mass[v]!, 0)
    let before = 0
    ids = ids.filter(v => {
      const keep = before <= Math.fround(d.topP!) * total
      before += mass[v]!
      return keep
    })
  }
  return ids.filter(v => mass[v]! >= Math.fround(d.minP ?? 0))
}

function expected(logits: readonly number[], d: Draw): number {
  const temperature = Math.fround(d.temperature)
  const [low, high] = d.seed ?? [1, 0]
  let best = -1
  let most = Number.NEGATIVE_INFINITY
  for (const v of allowed(logits, d)) {
    const score = logits[v]! / temperature + gumbel(low, high, d.position ?? 0, v)
    if (score > most || (score === most && v < best)) {
      most = score
      best = v
    }
  }
  return best
}

export function sampleSuite({ ops }: Implementation): void {
  function draw(logits: readonly (readonly number[])[], draws: readonly Draw[]): number[] {
    const vocab = logits[0]!.length
    const x = fill(rowsOf(logits.length, vocab), (r, c) => logits[r]![c]!)
    const out = rowsOf(logits.length, 1)
    ops.sample({ out, logits: x, params: paramsOf(draws), vocab })(logits.length)
    return logits.map((_, r) => out.i[at(out, r)]!)
  }
  const logitsOf = (seed: number, n: number, spread: number): number[] => {
    const next = noise(seed)
    return Array.from({ length: n }, () => Math.fround(next() * spread))
  }

  describe('sample', () => {
    it('is greedy at temperature 0, low id first', () => {
      const draws = [{ temperature: 0 }, { temperature: 0 }, { temperature: 0 }]
      const rows = [
        [1, 3, 2, 3, 3],
        [0, 0, 0, 0, 0],
        [-5, -7, -5, -1, -1.5],
      ]
      expect(draw(rows, draws)).toEqual([1, 0, 3])
    })

    it('top-k 1 and tiny top-p are greedy too, and min-p 1 keeps the best alone', () => {
      const logits = logitsOf(1, 301, 3)
      const best = logits.indexOf(Math.max(...logits))
      for (let position = 0; position < 20; position++) {
        const common = { temperature: 5, position }
        const rows = [logits, logits, logits]
        expect(
          draw(rows, [
            { ...common, topK: 1 },
            { ...common, topP: 1e-6 },
            { ...common, minP: 1 },
          ]),
        ).toEqual([best, best, best])
      }
    })

    it('draws what runtime/random.ts says, under every limit (property)', () => {
      fc.assert(
        fc.property(
          fc.record({
            seed: fc.nat(),
            vocab: fc.integer({ min: 1, max: 700 }),
            spread: fc.constantFrom(0.1, 2, 10, 40),
            temperature: fc.constantFrom(0.3, 1, 2.5),
            topK: fc.constantFrom(0, 1, 2, 7, 50, 5000),
            topP: fc.constantFrom(1, 0.999, 0.9, 0.5, 0.1),
            minP: fc.constantFrom(0, 0.01, 0.3),
            low: fc.nat({ max: 0xffffffff }),
            high: fc.nat({ max: 0xffffffff }),
            position: fc.nat({ max: 100000 }),
          }),
          c => {
            const logits = logitsOf(c.seed, c.vocab, c.spread)
            const d: Draw = { ...c, seed: [c.low, c.high] }
            expect(draw([logits], [d])).toEqual([expected(logits, d)])
          },
        ),
        { numRuns: 300, seed: 4 },
      )
    })

    it('does not depend on the row, and changes with seed and position', () => {
      const logits = logitsOf(5, 100, 1)
      const draws = Array.from({ length: 64 }, (_, i) => ({
        temperature: 1,
        seed: [i % 4, i >> 5] as const,
        position: (i >> 2) % 8,
      }))
      const together = draw(
        draws.map(() => logits),
        draws,
      )
      draws.forEach((d, i) => {
        expect(draw([logits], [d])).toEqual([together[i]])
      })
      expect(new Set(together).size).toBeGreaterThan(20)
    })

    it('follows the softmax distribution (chi-square over 20,000 draws)', () => {
      const logits = [0, 1, 2, -1, 0.5, 1.5, -2, 0]
      const temperature = 1.5
      const total = logits.reduce((s, x) => s + Math.exp(x / temperature), 0)
      const count = 20000
      const seen = new Array<number>(8).fill(0)
      const draws = Array.from({ length: count }, (_, i) => ({ temperature, seed: [7, 9] as const, position: i }))
      for (const v of draw(
        draws.map(() => logits),
        draws,
      ))
        seen[v]!++
      const chi = logits.reduce((s, x, v) => {
        const want = (count * Math.exp(x / temperature)) / total
        return s + (seen[v]! - want) ** 2 / want
      }, 0)
      // 7 degrees of freedom: 24.3 is passed once in a thousand seeds.
      expect(chi).toBeLessThan(24.3)
    })

    it('returns the log-probability under the plain softmax', () => {
      const n = 1037
      const logits = fill(rowsOf(3, n), noise(6))
      for (let r = 0; r < 3; r++) for (let c = 0; c < n; c++) logits.f[at(logits, r, c)]! *= 8
      const out = rowsOf(3, 1)
      const logprob = rowsOf(3, 1)
      const params = paramsOf([{ temperature: 0 }, { temperature: 2 }, { temperature: 1, topK: 5 }])
      ops.sample({ out, logits, params, vocab: n, logprob })(3)
      for (let r = 0; r < 3; r++) {
        const x = Array.from(logits.f.subarray(at(logits, r), at(logits, r) + n))
        const want = x[out.i[at(out, r)]!]! - Math.log(x.reduce((s, v) => s + Math.exp(v), 0))
        expect(logprob.f[at(logprob, r)]).toBeCloseTo(want, 4)
      }
    })
  })
}
