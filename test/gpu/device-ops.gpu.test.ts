// Operations that only devices of their own memory have: fused ones against float64, routing of padding and drawn routing, look-ups
// of experts, and drawing from a vocabulary of real size.
import { describe, expect, it } from 'vitest'
import type { Operand } from '../../src/device/ops.js'
import {
  at,
  fillInts,
  noise,
  randomRows,
  rowsOf,
  spanOf,
  type TestRows,
  useMemory,
  vectorOf,
} from '../../src/device/suite/bench.suite.js'
import { get, type HalfRows, halfRows, randomHalf, rotate, rotations } from '../../src/device/suite/half-rows.suite.js'
import { gumbel } from '../../src/runtime/random.js'
import { replicaOf } from '../../src/runtime/replica-hash.js'
import { implementationOf, openDevice } from './device.js'

const { ops, lender } = implementationOf(openDevice())
useMemory(lender)

type Rows = TestRows | HalfRows
const isHalf = (o: Rows): o is HalfRows => 'bits' in o
const value = (o: Rows, r: number, c: number): number => (isHalf(o) ? get(o, r, c) : o.f[at(o, r, c)]!)
const line = (o: Rows, r: number, from: number, count: number): number[] =>
  Array.from({ length: count }, (_, i) => value(o, r, from + i))

const kinds = [
  ['bf16', 8, 8],
  ['bf16', 3, 5],
  ['f32', 4, 4],
  ['f32', 3, 5],
] as const

const make = (kind: 'f32' | 'bf16', rows: number, width: number, offset: number, gap: number): Rows =>
  kind === 'bf16' ? halfRows(rows, width, offset, gap) : rowsOf(rows, width, offset, gap)
const random = (kind: 'f32' | 'bf16', seed: number, rows: number, width: number, offset: number, gap: number): Rows =>
  kind === 'bf16' ? randomHalf(seed, rows, width, offset, gap) : randomRows(seed, rows, width, offset, gap)

/** A result is rounded once, and sums of f32 are off a little. */
const near = (kind: 'f32' | 'bf16', got: number, want: number): boolean =>
  Math.abs(got - want) <= (kind === 'bf16' ? 2 ** -8 * Math.abs(want) : 0) + 4e-6 * (1 + Math.abs(want))

const norm = (head: readonly number[], weight: Float32Array, eps: number): number[] => {
  const inverse = 1 / Math.sqrt(head.reduce((s, v) => s + v * v, 0) / head.length + eps)
  return head.map((v, c) => v * inverse * weight[c]!)
}

describe.each(kinds)('from a projection to the cache, %s rows at %i, gap %i', (kind, offset, gap) => {
  it.each([
    [32, 4, 128, 128, true, false],
    [4, 2, 64, 64, false, true],
    [3, 1, 40, 16, true, true],
    [2, 2, 19, 6, true, false],
    [8, 8, 256, 128, false, false],
  ])(
    '%i heads, %i KV heads of %i, rope %i, norms %s, interleaved %s',
    (heads, kvHeads, width, ropeWidth, normed, interleaved) => {
      const all = heads + 2 * kvHeads
      const x = random(kind, 1, 3, all * width, offset, gap)
      const before = [0, 1, 2].map(r => line(x, r, 0, all * width))
      const kv = make(kind, 6, 2 * kvHeads * width, offset, gap)
      const untouched = value(kv, 0, 0)
      const slots = [5, -1, 2]
      const { table, list, positions } = rotations(ropeWidth)
      const q = vectorOf(Array.from({ length: width }, noise(2)))
      const k = vectorOf(Array.from({ length: width }, noise(3)))
      ops.qkNormRopeStore({
        x,
        kv,
        slots: fillInts(rowsOf(3, 1), r => slots[r]!),
        positions,
        heads,
        kvHeads,
        headWidth: width,
        ...(normed ? { norms: { q, k, eps: 1e-6 } } : {}),
        rope: { width: ropeWidth, cosSin: spanOf(table), interleaved },
      })(3)
      const expected = (r: number, head: number): number[] => {
        const source = before[r]!.slice(head * width, (head + 1) * width)
        if (head >= heads + kvHeads) return source
        const ready = normed ? norm(source, (head < heads ? q : k).f, 1e-6) : source
        return ready.map((v, c) =>
          c < ropeWidth ? rotate(ready.slice(0, ropeWidth), table, list[r]!, c, interleaved) : v,
        )
      }
      for (let r = 0; r < 3; r++)
        for (let head = 0; head < all; head++) {
          const want = expected(r, head)
          const slot = slots[r]!
          if (head >= heads && slot < 0) continue
          const got = head < heads ? line(x, r, head * width, width) : line(kv, slot, (head - heads) * width, width)
          want.forEach((v, c) => {
            if (!near(kind, got[c]!, v)) expect.fail(`row ${r}, head ${head}, column ${c}: ${got[c]}, expected ${v}`)
          })
        }
      for (const slot of [0, 1, 3, 4])
        for (let c = 0; c < 2 * kvHeads * width; c++) expect(value(kv, slot, c)).toBe(untouched)
    },
  )

  it('gives a row the same bits among many as alone', () => {
    const [rows, heads, kvHeads, width] = [1500, 16, 4, 128]
    const all = heads + 2 * kvHeads
    const { table } = rotations(width)
    const q = vectorOf(Array.from({ length: width }, noise(2)))
    const k = vectorOf(Array.from({ length: width }, noise(3)))
    const rope = { width, cosSin: spanOf(table), interleaved: false }
    const run = (pieces: readonly (readonly [first: number, count: number])[]) => {
      const x = random(kind, 1, rows, all * width, offset, gap)
      const kv = make(kind, rows, 2 * kvHeads * width, offset, gap)
      for (const [first, count] of pieces) {
        const part = { ...x, offset: x.offset + first * x.stride }
        const slots = fillInts(rowsOf(count, 1), r => first + r)
        const positions = fillInts(rowsOf(count, 1), r => (first + r) % 3)
        const common = { kv, slots, positions, heads, kvHeads, headWidth: width, norms: { q, k, eps: 1e-6 }, rope }
        ops.qkNormRopeStore({ x: part, ...common })(count)
      }
      return (r: number) => [...line(x, r, 0, heads * width), ...line(kv, r, 0, 2 * kvHeads * width)]
    }
    const some = [0, 777, 1499]
    const [among, alone] = [run([[0, rows]]), run(some.map(r => [r, 1]))]
    for (const r of some) expect(among(r)).toEqual(alone(r))
  })

  it.each([
    [512, 64, true],
    [32, 8, false],
    [37, 10, true],
  ])('latent of %i with a shared key of %i, interleaved %s', (latent, ropeWidth, interleaved) => {
    const width = latent + ropeWidth
    const x = random(kind, 1, 3, width, offset, gap)
    const before = [0, 1, 2].map(r => line(x, r, 0, width))
    const kv = make(kind, 6, width, offset, gap)
    const untouched = value(kv, 0, 0)
    const slots = [5, -1, 2]
    const { table, list, positions } = rotations(ropeWidth)
    const weight = vectorOf(Array.from({ length: latent }, noise(2)))
    ops.latentNormRopeStore({
      x,
      kv,
      slots: fillInts(rowsOf(3, 1), r => slots[r]!),
      positions,
      latent,
      norm: { weight, eps: 1e-6 },
      rope: { width: ropeWidth, cosSin: spanOf(table), interleaved },
    })(3)
    for (const r of [0, 2]) {
      const key = before[r]!.slice(latent)
      const rotated = key.map((_, c) => rotate(key, table, list[r]!, c, interleaved))
      const want = [...norm(before[r]!.slice(0, latent), weight.f, 1e-6), ...rotated]
      const got = line(kv, slots[r]!, 0, width)
      want.forEach((v, c) => {
        if (!near(kind, got[c]!, v)) expect.fail(`row ${r}, column ${c}: ${got[c]}, expected ${v}`)
      })
    }
    for (const slot of [0, 1, 3, 4]) for (let c = 0; c < width; c++) expect(value(kv, slot, c)).toBe(untouched)
  })

  it('refuses slots and positions outside their tables', () => {
    const { table, positions } = rotations(8)
    const common = {
      x: random(kind, 1, 3, 32, offset, gap),
      kv: make(kind, 4, 16, offset, gap),
      positions,
      heads: 2,
      kvHeads: 1,
      headWidth: 8,
      rope: { width: 8, cosSin: spanOf(table), interleaved: false },
    }
    const bind = (slots: Operand, where: Operand) => ops.qkNormRopeStore({ ...common, slots, positions: where })
    expect(() =>
      bind(
        fillInts(rowsOf(3, 1), () => 400),
        positions,
      )(3),
    ).toThrow(/slot 400 lies outside/)
    expect(() =>
      bind(
        fillInts(rowsOf(3, 1), () => 1),
        fillInts(rowsOf(3, 1), () => 99),
      )(3),
    ).toThrow(/position 99 lies outside/)
  })
})

describe('router', () => {
  const spec = {
    experts: 128,
    topK: 8,
    scoring: 'softmax',
    groups: 1,
    topGroups: 1,
    groupScore: 'max',
    normalize: true,
    scale: 1,
  } as const

  it('gives padding no experts', () => {
    const [ids, weights] = [rowsOf(6, 8), rowsOf(6, 8)]
    const validRows = fillInts(rowsOf(1, 1), () => 4)
    ops.router({ ids, weights, logits: randomRows(1, 6, 128), spec, validRows })(6)
    for (let r = 0; r < 6; r++)
      for (let s = 0; s < 8; s++) {
        if (r < 4) expect(ids.i[at(ids, r, s)]).toBeGreaterThanOrEqual(0)
        else expect([ids.i[at(ids, r, s)], weights.f[at(weights, r, s)]]).toEqual([-1, 0])
      }
  })

  it('draws distinct experts evenly, the same ones again, others for another layer', () => {
    const rows = 2048
    const logits = randomRows(1, rows, 128)
    const positions = fillInts(rowsOf(rows, 1), r => 500 + (r % 7))
    const drawn = (salt: number) => {
      const [ids, weights] = [rowsOf(rows, 8), rowsOf(rows, 8)]
      ops.router({ ids, weights, logits, spec, fake: { positions, salt } })(rows)
      return { ids, weights }
    }
    const { ids, weights } = drawn(3)
    const seen = new Array<number>(128).fill(0)
    for (let r = 0; r < rows; r++) {
      const row = Array.from({ length: 8 }, (_, s) => ids.i[at(ids, r, s)]!)
      expect(new Set(row).size).toBe(8)
      for (const e of row) seen[e]!++
      for (let i = 0; i < 8; i++) expect(weights.f[at(weights, r, i)]).toBeCloseTo(1 / 8, 6)
    }
    const mean = (rows * 8) / 128
    const chi = seen.reduce((s, n) => s + (n - mean) ** 2 / mean, 0)
    // 127 degrees of freedom: 181.99 is passed once in a thousand. Draws without replacement spread less.
    expect(chi).toBeLessThan(182)
    expect(Array.from(drawn(3).ids.i)).toEqual(Array.from(ids.i))
    expect(Array.from(drawn(4).ids.i)).not.toEqual(Array.from(ids.i))
  })
})

describe('look-ups and clamps', () => {
  it('mapIds keeps -1 and refuses ids beyond the table', () => {
    const table = vectorOf(new Array(64).fill(0))
    const entries = new Int32Array(table.f.buffer, table.f.byteOffset, 64)
    for (let i = 0; i < 64; i++) entries[i] = i % 5 === 0 ? -1 : 1000 + i
    const list = [3, -1, 5, 63]
    const ids = fillInts(rowsOf(2, 2), (r, c) => list[2 * r + c]!)
    const out = rowsOf(2, 2)
    ops.mapIds({ out, ids, table: table.span, width: 2 })(2)
    expect([0, 1].flatMap(r => [0, 1].map(c => out.i[at(out, r, c)]))).toEqual([1003, -1, -1, 1063])
    fillInts(ids, () => 64)
    expect(() => ops.mapIds({ out, ids, table: table.span, width: 2 })(1)).toThrow(/outside/)
  })

  it('chooseReplicas agrees with runtime/replica-hash.ts', () => {
    const [experts, columns, rows, width] = [16, 5, 40, 3]
    const table = vectorOf(new Array(experts * columns).fill(0))
    const entries = new Int32Array(table.f.buffer, table.f.byteOffset, experts * columns)
    for (let e = 0; e < experts; e++) {
      entries[e * columns] = 1 + (e % 4)
      for (let i = 0; i < 4; i++) entries[e * columns + 1 + i] = e * 10 + i
    }
    const ids = fillInts(rowsOf(rows, width), (r, c) => ((r * 7 + c * 3) % (experts + 1)) - 1)
    const requestKeys = fillInts(rowsOf(rows, 1), r => Math.imul(r + 1, 0x9e3779b1))
    const positions = fillInts(rowsOf(rows, 1), r => r * 13)
    const out = rowsOf(rows, width)
    ops.chooseReplicas({ out, ids, requestKeys, positions, table: table.span, columns, layer: 5, width })(rows)
    for (let r = 0; r < rows; r++)
      for (let c = 0; c < width; c++) {
        const e = ids.i[at(ids, r, c)]!
        const pick =
          e < 0 ? 0 : replicaOf(5, e, requestKeys.i[at(requestKeys, r)]!, positions.i[at(positions, r)]!, 1 + (e % 4))
        expect(out.i[at(out, r, c)]).toBe(e < 0 ? -1 : e * 10 + pick)
      }
  })

  it.each(kinds)('clamp, %s at %i, gap %i', (kind, offset, gap) => {
    const x = random(kind, 1, 3, 21, offset, gap)
    const before = [0, 1, 2].map(r => line(x, r, 0, 21))
    const limit = 0.25
    ops.clamp({ x, width: 21, limit })(3)
    for (let r = 0; r < 3; r++)
      expect(line(x, r, 0, 21)).toEqual(before[r]!.map(v => Math.min(Math.max(v, -limit), limit)))
  })
})

describe('drawing from 151,936 tokens', () => {
  const vocab = 151_936
  const draws = [
    { temperature: 0 },
    { temperature: 1 },
    { temperature: 0.6, minP: 0.05 },
    { temperature: 1, topK: 50 },
    { temperature: 1.3, topK: 20, topP: 0.95 },
    { temperature: 0.8, topP: 0.9 },
    { temperature: 2, topP: 0.5 },
    // More tokens than are listed, one limit and both.
    { temperature: 1, topK: 9000 },
    { temperature: 1, topK: 9000, topP: 0.9 },
  ] as const

  it('gives what a plain computation in float64 gives, and its log-probability', () => {
    const rows = 3 * draws.length
    const logits = rowsOf(rows, vocab, 0, 0)
    for (let r = 0; r < rows; r++) {
      const next = noise(r)
      const spread = [1, 8, 30][r % 3]!
      for (let c = 0; c < vocab; c++) logits.f[at(logits, r, c)] = next() * spread
    }
    const params = rowsOf(rows, 8)
    const words = new Uint32Array(params.i.buffer, params.i.byteOffset, params.i.length)
    const wanted = Array.from({ length: rows }, (_, r) => ({ minP: 0, topK: 0, topP: 1, ...draws[Math.floor(r / 3)]! }))
    wanted.forEach((d, r) => {
      params.f.set([d.temperature, d.topP, d.minP, d.topK], at(params, r))
      words.set([7, r, 100 + r, 0], at(params, r, 4))
    })
    const [out, logprob] = [rowsOf(rows, 1), rowsOf(rows, 1)]
    ops.sample({ out, logits, params, vocab, logprob })(rows)
    let excused = 0
    wanted.forEach((d, r) => {
      const x = Array.from(logits.f.subarray(at(logits, r), at(logits, r) + vocab))
      const top = x.reduce((best, v, i) => (v > x[best]! ? i : best), 0)
      const plain = d.temperature === 0 ? { token: top, nearest: 1 } : plainDraw(x, top, d, r)
      const token = out.i[at(out, r)]!
      // Where the mass before some token is top_p of all but for the rounding of sums, that token may stay or go.
      if (token !== plain.token && plain.nearest < 1e-6) excused++
      else expect(token, `row ${r}`).toBe(plain.token)
      const sum = x.reduce((s, v) => s + Math.exp(v - x[top]!), 0)
      expect(logprob.f[at(logprob, r)]).toBeCloseTo(x[token]! - x[top]! - Math.log(sum), 4)
    })
    expect(excused).toBeLessThanOrEqual(1)
  })
})

function plainDraw(
  x: readonly number[],
  top: number,
  { temperature, topK, topP, minP }: { temperature: number; topK: number; topP: number; minP: number },
  r: number,
): { token: number; nearest: number } {
  const t = Math.fround(temperature)
  let nearest = 1
  const mass = x.map(v => Math.exp(v / t - x[top]! / t))
  let ids = Array.from(x.keys())
  if (topK > 0 || topP < 1) ids.sort((i, j) => x[j]! - x[i]! || i - j)
  if (topK > 0) ids = ids.slice(0, topK)
  if (topP < 1) {
    const total = ids.reduce((s, v) => s + mass[v]!, 0)
    let before = 0
    ids = ids.filter(v => {
      const keep = before <= Math.fround(topP) * total
      nearest = Math.min(nearest, Math.abs(before / total - Math.fround(topP)))
      before += mass[v]!
      return keep
    })
  }
  let [best, most] = [top, Number.NEGATIVE_INFINITY]
  for (const v of ids) {
    if (mass[v]! < Math.fround(minP)) continue
    const score = x[v]! / t + gumbel(7, r, 100 + r, v)
    if (score > most || (score === most && v < best)) [best, most] = [v, score]
  }
  return { token: best, nearest }
}
