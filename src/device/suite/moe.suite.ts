// Router and experts against float64 oracles: ties, groups, biases, duplicate and absent experts, and independence of
// the batch.
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { GatedActivation, Operand, RouterSpec, WeightKind } from '../ops.js'
import {
  at,
  expectClose,
  expectGuards,
  expectSameBits,
  fill,
  fillInts,
  from,
  type Implementation,
  lend,
  matrixOf,
  noise,
  random,
  randomRows,
  rowsOf,
  type TestRows,
  vectorOf,
} from './bench.suite.js'

const plain: RouterSpec = {
  experts: 10,
  topK: 3,
  scoring: 'softmax',
  groups: 1,
  topGroups: 1,
  groupScore: 'max',
  normalize: false,
  scale: 1,
}

/** The rules of RouterSpec, written as differently as can be: repeated selection by scanning. */
function routerOracle(spec: RouterSpec, x: number[], bias?: ArrayLike<number>): { ids: number[]; weights: number[] } {
  const total = x.reduce((s, v) => s + Math.exp(v), 0)
  const score = x.map(v =>
    spec.scoring === 'softmax' ? Math.exp(v) / total : spec.scoring === 'sigmoid' ? 1 / (1 + Math.exp(-v)) : v,
  )
  const choice = score.map((s, i) => Math.fround(s) + (bias?.[i] ?? 0))
  const size = spec.experts / spec.groups
  const allowed = new Set(x.keys())
  if (spec.topGroups < spec.groups) {
    const groupScore = (g: number): number => {
      const inGroup = choice.slice(g * size, (g + 1) * size).sort((p, q) => q - p)
      return spec.groupScore === 'max' || size === 1 ? inGroup[0]! : inGroup[0]! + inGroup[1]!
    }
    const left = new Set(Array.from({ length: spec.groups }, (_, g) => g))
    const kept = new Set<number>()
    while (kept.size < spec.topGroups) {
      let best = -1
      for (const g of left) if (best < 0 || groupScore(g) > groupScore(best)) best = g
      left.delete(best)
      kept.add(best)
    }
    for (const i of x.keys()) if (!kept.has(Math.floor(i / size))) allowed.delete(i)
  }
  const ids: number[] = []
  while (ids.length < spec.topK) {
    let best = -1
    for (const i of allowed) if (best < 0 || choice[i]! > choice[best]!) best = i
    allowed.delete(best)
    ids.push(best)
  }
  let weights = ids.map(i => score[i]!)
  if (spec.scoring === 'softmax_after_topk') {
    const sum = weights.reduce((s, w) => s + Math.exp(w), 0)
    weights = weights.map(w => Math.exp(w) / sum)
  }
  if (spec.normalize) {
    const sum = weights.reduce((s, w) => s + w, 0)
    weights = weights.map(w => w / sum)
  }
  return { ids, weights: weights.map(w => w * spec.scale) }
}

export function moeSuite({ ops, packer }: Implementation): void {
  describe('router', () => {
    const specs: [string, RouterSpec, boolean][] = [
      ['softmax', plain, false],
      ['softmax, normalized and scaled', { ...plain, normalize: true, scale: 2.5 }, false],
      ['softmax after top-k', { ...plain, scoring: 'softmax_after_topk' }, false],
      ['sigmoid with a correction bias', { ...plain, scoring: 'sigmoid', normalize: true, scale: 1.8 }, true],
      ['all experts', { ...plain, topK: 10 }, false],
      ['24 experts in groups, best', { ...plain, experts: 24, groups: 4, topGroups: 2, topK: 5 }, false],
      [
        '24 experts in groups, two best, biased',
        {
          ...plain,
          experts: 24,
          groups: 8,
          topGroups: 3,
          topK: 6,
          scoring: 'sigmoid',
          groupScore: 'top2',
          normalize: true,
        },
        true,
      ],
      [
        '256 experts in groups',
        { ...plain, experts: 256, groups: 8, topGroups: 4, topK: 8, groupScore: 'top2', scoring: 'sigmoid' },
        true,
      ],
    ]
    it.each(specs)('%s', (_, spec, biased) => {
      const rows = 40
      const logits = randomRows(11, rows, spec.experts)
      for (let r = 0; r < rows; r++) for (let c = 0; c < spec.experts; c++) logits.f[at(logits, r, c)]! *= 4
      const bias = biased ? vectorOf(Array.from({ length: spec.experts }, noise(12))) : undefined
      const ids = rowsOf(rows, spec.topK)
      const weights = rowsOf(rows, spec.topK)
      ops.router({ ids, weights, logits, spec, ...(bias ? { bias } : {}) })(rows)
      for (let r = 0; r < rows; r++) {
        const x = Array.from(logits.f.subarray(at(logits, r), at(logits, r) + spec.experts))
        const want = routerOracle(spec, x, bias?.f)
        expect(Array.from(ids.i.subarray(at(ids, r), at(ids, r) + spec.topK))).toEqual(want.ids)
        for (let k = 0; k < spec.topK; k++) expect(weights.f[at(weights, r, k)]).toBeCloseTo(want.weights[k]!, 5)
      }
      expectGuards(ids)
      expectGuards(weights)
    })

    it('breaks ties by the lower id, among experts and among groups', () => {
      const spec: RouterSpec = {
        ...plain,
        experts: 12,
        groups: 4,
        topGroups: 2,
        topK: 4,
        groupScore: 'top2',
        scoring: 'sigmoid',
      }
      const logits = fill(rowsOf(3, 12), (r, c) =>
        r === 0 ? 0.5 : r === 1 ? (c >= 6 ? 1 : 0) : [0, 0, 1, 1][Math.floor(c / 3)]!,
      )
      const ids = rowsOf(3, 4)
      const weights = rowsOf(3, 4)
      ops.router({ ids, weights, logits, spec })(3)
      const row = (r: number): number[] => Array.from(ids.i.subarray(at(ids, r), at(ids, r) + 4))
      expect(row(0)).toEqual([0, 1, 2, 3])
      expect(row(1)).toEqual([6, 7, 8, 9])
      expect(row(2)).toEqual([6, 7, 8, 9])
    })

    it('never chooses an expert twice, even when kept groups hold fewer than topK', () => {
      const spec: RouterSpec = { ...plain, experts: 8, groups: 4, topGroups: 1, topK: 4 }
      const logits = randomRows(3, 5, 8)
      const ids = rowsOf(5, 4)
      ops.router({ ids, weights: rowsOf(5, 4), logits, spec })(5)
      for (let r = 0; r < 5; r++) expect(new Set(ids.i.subarray(at(ids, r), at(ids, r) + 4)).size).toBe(4)
    })
  })

  const kinds: WeightKind[] = ['f32', 'bf16']
  describe.each(kinds)('experts, %s', kind => {
    const make = (
      experts: number,
      hidden: number,
      inter: number,
      topK: number,
      biased: boolean,
      activation: GatedActivation,
    ) => {
      const gateUp = matrixOf(packer, 21, kind, 2 * inter, hidden, experts)
      const down = matrixOf(packer, 22, kind, hidden, inter, experts)
      const gateUpBias = vectorOf(Array.from({ length: experts * 2 * inter }, noise(23)))
      const downBias = vectorOf(Array.from({ length: experts * hidden }, noise(24)))
      const biases = biased ? { gateUpBias, downBias } : {}
      const scratchFor = (rows: number): Operand => {
        const elements = rows * topK * (3 * inter + hidden)
        return { span: lend(elements * 4), offset: 0, stride: 0 }
      }
      const bind = (b: Batch, first = 0, rows = b.x.rows) =>
        ops.experts({
          out: from(b.out, first),
          x: from(b.x, first),
          ids: from(b.ids, first),
          weights: from(b.weights, first),
          topK,
          gateUp,
          down,
          activation,
          scratch: scratchFor(rows),
          ...biases,
        })
      const oracle = (b: Batch, r: number, c: number): number => {
        let sum = 0
        for (let s = 0; s < topK; s++) {
          const e = b.ids.i[at(b.ids, r, s)]!
          if (e < 0) continue
          let y = biased ? downBias.f[e * hidden + c]! : 0
          for (let i = 0; i < inter; i++) {
            let gate = biased ? gateUpBias.f[e * 2 * inter + i]! : 0
            let up = biased ? gateUpBias.f[e * 2 * inter + inter + i]! : 0
            for (let k = 0; k < hidden; k++) {
              gate += b.x.f[at(b.x, r, k)]! * gateUp.w(e, i, k)
              up += b.x.f[at(b.x, r, k)]! * gateUp.w(e, inter + i, k)
            }
            let h = (gate / (1 + Math.exp(-gate))) * up
            if (activation.kind === 'swiglu_clamped') {
              gate = Math.min(gate, activation.limit)
              up = Math.max(-activation.limit, Math.min(up, activation.limit))
              h = (gate / (1 + Math.exp(-activation.alpha * gate))) * (up + 1)
            }
            y += h * down.w(e, c, i)
          }
          sum += b.weights.f[at(b.weights, r, s)]! * y
        }
        return sum
      }
      return { bind, oracle, experts, hidden, topK }
    }
    interface Batch {
      readonly x: TestRows
      readonly out: TestRows
      readonly ids: TestRows
      readonly weights: TestRows
    }
    const batchOf = (m: { experts: number; hidden: number; topK: number }, rows: number, seed: number): Batch => {
      const r = random(seed)
      return {
        x: randomRows(seed, rows, m.hidden),
        out: rowsOf(rows, m.hidden),
        ids: fillInts(rowsOf(rows, m.topK), () => r.below(m.experts + 1) - 1),
        weights: randomRows(seed + 1, rows, m.topK),
      }
    }

    it.each([
      [10, 80, 24, 3, 1, false, 'silu'],
      [10, 80, 24, 3, 7, true, 'silu'],
      [24, 33, 10, 4, 30, true, 'swiglu_clamped'],
      [3, 16, 5, 2, 40, false, 'swiglu_clamped'],
    ] as const)(
      '%i experts, hidden %i, inner %i, top %i, %i rows',
      (experts, hidden, inter, topK, rows, biased, act) => {
        const activation: GatedActivation =
          act === 'silu' ? { kind: 'silu' } : { kind: 'swiglu_clamped', limit: 0.7, alpha: 1.7 }
        const m = make(experts, hidden, inter, topK, biased, activation)
        const b = batchOf(m, rows, 31)
        if (rows > 4) {
          for (let s = 0; s < topK; s++) b.ids.i[at(b.ids, 1, s)] = -1
          for (let s = 0; s < topK; s++) b.ids.i[at(b.ids, 2, s)] = 1 // one expert in every slot
        }
        m.bind(b)(rows)
        expectClose(b.out, (r, c) => m.oracle(b, r, c), 1e-5)
      },
    )

    it('gives a row the same bits alone and in any company', () => {
      const m = make(6, 48, 20, 3, true, { kind: 'silu' })
      fc.assert(
        fc.property(fc.integer({ min: 2, max: 40 }), fc.nat(), (rows, seed) => {
          const b = batchOf(m, rows, seed)
          m.bind(b)(rows)
          const alone = { ...b, out: rowsOf(rows, m.hidden) }
          for (let r = 0; r < rows; r++) m.bind(alone, r, 1)(1)
          expectSameBits(alone.out, b.out)
        }),
        { numRuns: 15, seed: 3 },
      )
    })

    it('refuses experts that do not exist and more rows than the scratch holds', () => {
      const m = make(4, 16, 8, 2, false, { kind: 'silu' })
      const b = batchOf(m, 3, 5)
      expect(() => m.bind(b, 0, 2)(3)).toThrow(/rows/)
      b.ids.i[at(b.ids, 0, 1)] = 4
      expect(() => m.bind(b)(1)).toThrow(/outside/)
    })
  })
}
