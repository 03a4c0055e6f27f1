// The layouts' pieces against the fused experts, bit for bit, on every kind of kernels that brings its own weighted sum;
// and the masked layout against the same.
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { wireFormat } from '../../comm/wire/format.js'
import { operandRows } from '../../comm/wire/kernels.js'
import { createWireKernels } from '../../comm/wire/native.js'
import { createCpuDevice } from '../../device/cpu/index.js'
import { HostMemoryLender } from '../../device/memory.js'
import type { GatedActivation, WeightKind } from '../../device/ops.js'
import {
  at,
  expectGuards,
  expectSameBits,
  fillInts,
  from,
  lend,
  matrixOf,
  noise,
  random,
  randomRows,
  rowsOf,
  type TestRows,
  vectorOf,
} from '../../device/suite/bench.suite.js'
import {
  bindContiguousExperts,
  bindContiguousGemm,
  bindFillBatched,
  bindMaskedExperts,
  bindPermute,
  ExpertLayoutError,
  type HeldExperts,
  lendPlanMemory,
  planPermute,
} from './index.js'

const available = createCpuDevice({ kernels: 'reference' }).kernels.available
const kinds = [['reference', undefined] as const, ...available.map(isa => ['native', isa] as const)]

interface Shape {
  readonly experts: number
  readonly hidden: number
  readonly inter: number
  readonly topK: number
  readonly rows: number
  readonly kind: WeightKind
  readonly biased: boolean
  readonly activation: GatedActivation
  readonly seed: number
}

const SILU: GatedActivation = { kind: 'silu' }
const CLAMPED: GatedActivation = { kind: 'swiglu_clamped', limit: 0.7, alpha: 1.7 }

const shapes: fc.Arbitrary<Shape> = fc.record({
  experts: fc.integer({ min: 1, max: 7 }),
  hidden: fc.integer({ min: 1, max: 40 }),
  inter: fc.integer({ min: 2, max: 24 }),
  topK: fc.integer({ min: 1, max: 5 }),
  rows: fc.integer({ min: 0, max: 24 }),
  kind: fc.constantFrom<WeightKind>('f32', 'bf16'),
  biased: fc.boolean(),
  activation: fc.constantFrom(SILU, CLAMPED),
  seed: fc.nat(),
})

describe.each(kinds)('%s kernels %s', (kernels, isa) => {
  const device = createCpuDevice(isa ? { kernels, isa } : { kernels })
  const { ops, packer } = device
  const wire = createWireKernels(kernels, isa)
  const kit = { ops, wire, lender: new HostMemoryLender() }

  const heldOf = ({ experts, hidden, inter, kind, biased, activation, seed }: Shape): HeldExperts => ({
    gateUp: matrixOf(packer, seed, kind, 2 * inter, hidden, experts),
    down: matrixOf(packer, seed + 1, kind, hidden, inter, experts),
    activation,
    ...(biased
      ? {
          gateUpBias: vectorOf(Array.from({ length: experts * 2 * inter }, noise(seed + 2))),
          downBias: vectorOf(Array.from({ length: experts * hidden }, noise(seed + 3))),
        }
      : {}),
  })

  /** Ids of every sort: absent ones, duplicates, experts that nobody chooses, tokens that choose none. */
  const batchOf = ({ experts, hidden, topK, rows, seed }: Shape) => {
    const r = random(seed + 4)
    // Operands hold a row at least.
    const held = Math.max(1, rows)
    const chosen = 1 + r.below(experts)
    return {
      x: randomRows(seed + 5, held, hidden),
      ids: fillInts(rowsOf(held, topK), () => r.below(chosen + 1) - 1),
      weights: randomRows(seed + 6, held, topK),
      out: rowsOf(held, hidden),
    }
  }

  const fused = (shape: Shape, experts: HeldExperts, b: ReturnType<typeof batchOf>): TestRows => {
    const out = rowsOf(Math.max(1, shape.rows), shape.hidden)
    const elements = Math.max(1, shape.rows) * shape.topK * (3 * shape.inter + shape.hidden)
    const scratch = { span: lend(elements * 4), offset: 0, stride: 0 }
    ops.experts({ ...b, ...experts, out, topK: shape.topK, scratch })(shape.rows)
    return out
  }

  it('has a weighted sum of its own', () => {
    expect(wire.name).toBe(isa ? `native ${isa}` : 'reference')
  })

  it('contiguous: the bits of the fused experts, whatever the ids and the alignment', () => {
    const alignments = fc.constantFrom(1, 2, 16, 128)
    fc.assert(
      fc.property(shapes, alignments, (shape, rowAlignment) => {
        const experts = heldOf(shape)
        const b = batchOf(shape)
        const { topK, rows } = shape
        const run = bindContiguousExperts(kit, { ...b, topK, tokens: Math.max(1, rows), rowAlignment, experts })
        const plan = run(rows)
        expect(plan.pairs).toBe(plan.invPerm.filter(row => row >= 0).length)
        expectSameBits(b.out, fused(shape, experts, b), rows)
        expectGuards(b.out, rows)
      }),
      { numRuns: 60, seed: 5 },
    )
  })

  it('contiguous: bound once, run on batches of other sizes and ids', () => {
    const shape: Shape = {
      experts: 5,
      hidden: 32,
      inter: 16,
      topK: 3,
      rows: 20,
      kind: 'bf16',
      biased: true,
      activation: SILU,
      seed: 9,
    }
    const experts = heldOf(shape)
    const b = batchOf(shape)
    const run = bindContiguousExperts(kit, { ...b, topK: 3, tokens: 20, rowAlignment: 16, experts })
    for (const [rows, modulus] of [
      [20, 5],
      [1, 2],
      [0, 1],
      [13, 3],
      [20, 1],
    ] as const) {
      fillInts(b.ids, (r, c) => ((r * 7 + c * 3) % (modulus + 1)) - 1)
      run(rows)
      expectSameBits(b.out, fused({ ...shape, rows }, experts, b), rows)
    }
  })

  it('masked: rows of each expert, then the same bits after weighting; a result may replace its input', () => {
    fc.assert(
      fc.property(shapes, fc.boolean(), (shape, inPlace) => {
        const experts = heldOf(shape)
        const b = batchOf(shape)
        const { topK, rows, hidden } = shape
        const capacity = rows * topK + 1
        // The contiguous layout without alignment says which pair is the how-many-th of its expert.
        const ids = { data: b.ids.i, offset: b.ids.offset, stride: b.ids.stride }
        const plan = planPermute(ids, rows, { topK, experts: shape.experts, rowAlignment: 1 })
        const slotOfRow = rowsOf(shape.experts * capacity, 1, 0, 0)
        const index = plan.invPerm.map((row, pair) => {
          if (row < 0) return -1
          const e = plan.mIndices[row]!
          const place = e * capacity + row - plan.starts[e]!
          slotOfRow.i[place] = Math.floor(pair / topK)
          return place
        })
        const x = rowsOf(shape.experts * capacity, hidden)
        const out = inPlace ? x : rowsOf(shape.experts * capacity, hidden)
        bindFillBatched(ops, { x: b.x, slotOfRow, out: x, width: hidden, experts: shape.experts, capacity })(
          plan.counts,
        )
        bindMaskedExperts(kit, { x, out, capacity, experts })(plan.counts)
        const format = wireFormat('f32', hidden)
        const weights = Float32Array.from(
          { length: rows * topK },
          (_, p) => b.weights.f[at(b.weights, Math.floor(p / topK), p % topK)]!,
        )
        wire.weightedSum({
          from: operandRows(out, format),
          to: operandRows(b.out, format),
          n: rows,
          topK,
          index,
          weights,
        })
        expectSameBits(b.out, fused(shape, experts, b), rows)
        for (let e = 0; e < shape.experts; e++) {
          const untouched = from(out, e * capacity + plan.counts[e]!)
          for (let c = 0; c < hidden; c++) expect(out.f[untouched.offset + c]).toBe(Math.fround(1.25e30))
        }
      }),
      { numRuns: 40, seed: 6 },
    )
  })

  it('permutes rows of any 4-byte words, quantised ones too, and touches no padding', () => {
    const shape = { topK: 2, experts: 3, rowAlignment: 4 }
    const x = fillInts(rowsOf(6, 5), (r, c) => (0x7fa00000 + r * 16 + c) | 0) // NaNs as floats
    const ids = fillInts(rowsOf(6, 2), (r, c) => ((r + c) % 4) - 1)
    const memory = lendPlanMemory(kit.lender, shape, 6)
    const plan = planPermute({ data: ids.i, offset: ids.offset, stride: ids.stride }, 6, shape, memory)
    const rows = rowsOf(memory.rows, 5)
    bindPermute(ops, { x, rows, width: 5, topK: 2, memory })(plan)
    const filled = new Set(plan.invPerm)
    plan.invPerm.forEach((row, pair) => {
      if (row < 0) return
      for (let c = 0; c < 5; c++) expect(rows.i[at(rows, row, c)]).toBe(x.i[at(x, pair >> 1, c)])
    })
    for (let r = 0; r < memory.rows; r++) {
      if (!filled.has(r)) expect(rows.f[at(rows, r)]).toBe(Math.fround(1.25e30))
    }
  })

  it('refuses a layout that does not fit the GEMM it meets', () => {
    const weight = matrixOf(packer, 1, 'f32', 16, 8, 3)
    const gemm = bindContiguousGemm(ops, { weight, x: rowsOf(8, 8), out: rowsOf(8, 16), rows: 8, rowAlignment: 4 })
    const code = (run: () => void): string => {
      try {
        run()
      } catch (error) {
        if (error instanceof ExpertLayoutError) return error.code
      }
      return 'nothing'
    }
    expect(code(() => gemm(Int32Array.of(0, 0, 1), 3))).toBe('SY_EXPERTS_UNALIGNED')
    expect(code(() => gemm(new Int32Array(9), 9))).toBe('SY_EXPERTS_TOO_MANY_ROWS')
    expect(code(() => gemm(Int32Array.of(0, 0, -1, -1, 2), 5))).toBe('nothing')
  })
})
