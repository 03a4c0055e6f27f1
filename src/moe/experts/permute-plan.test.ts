// Plans of permutations: what must hold for any ids, counts and bounds that are exact, and the worked example of
// docs/experts.md, recomputed by the pieces that it explains.
import { readFileSync } from 'node:fs'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { referenceWireKernels } from '../../comm/wire/reference.js'
import { createCpuDevice } from '../../device/cpu/index.js'
import { f32View, HostMemoryLender, i32View } from '../../device/memory.js'
import type { Operand, PackedMatrix } from '../../device/ops.js'
import {
  bindContiguousExperts,
  bindContiguousGemm,
  bindPermute,
  ExpertLayoutError,
  lendPlanMemory,
  permutedRows,
  permutedRowsBound,
  planPermute,
} from './index.js'

const routings = fc
  .record({
    tokens: fc.integer({ min: 0, max: 20 }),
    topK: fc.integer({ min: 1, max: 6 }),
    experts: fc.integer({ min: 1, max: 9 }),
    rowAlignment: fc.constantFrom(1, 3, 16, 128),
    padding: fc.integer({ min: 0, max: 3 }),
  })
  .chain(shape =>
    fc
      .array(fc.integer({ min: -1, max: shape.experts - 1 }), {
        minLength: shape.tokens * shape.topK,
        maxLength: shape.tokens * shape.topK,
      })
      .map(ids => ({ ...shape, ids })),
  )

/** Ids with a gap between tokens, as they lie in a wider buffer. */
function spread(ids: readonly number[], topK: number, padding: number) {
  const stride = topK + padding
  const tokens = ids.length / topK
  const data = new Int32Array(2 + tokens * stride).fill(1 << 30)
  ids.forEach((id, i) => {
    data[2 + Math.floor(i / topK) * stride + (i % topK)] = id
  })
  return { data, offset: 2, stride }
}

describe('planPermute', () => {
  it('gives each pair a row of its expert, in order, in aligned segments', () => {
    fc.assert(
      fc.property(routings, ({ ids, tokens, topK, experts, rowAlignment, padding }) => {
        const plan = planPermute(spread(ids, topK, padding), tokens, { topK, experts, rowAlignment })
        const counts = Array.from({ length: experts }, (_, e) => ids.filter(id => id === e).length)
        expect([...plan.counts]).toEqual(counts)
        expect(plan.rows).toBe(permutedRows(counts, rowAlignment))
        expect(plan.mIndices.length).toBe(plan.rows)
        expect(plan.starts[experts]).toBe(plan.rows)
        expect(plan.pairs).toBe(counts.reduce((a, b) => a + b, 0))
        for (let e = 0; e < experts; e++) {
          const [start, end] = [plan.starts[e]!, plan.starts[e + 1]!]
          expect(start % rowAlignment).toBe(0)
          expect(end - start).toBeGreaterThanOrEqual(counts[e]!)
          expect(end - start - counts[e]!).toBeLessThan(rowAlignment)
          // Valid rows first, then padding.
          const owners = [...plan.mIndices.subarray(start, end)]
          expect(owners).toEqual(owners.map((_, i) => (i < counts[e]! ? e : -1)))
          const rows = ids.flatMap((id, pair) => (id === e ? [plan.invPerm[pair]!] : []))
          expect(rows).toEqual(rows.map((_, i) => start + i))
        }
        expect([...plan.invPerm].map(row => (row < 0 ? -1 : plan.mIndices[row]))).toEqual(ids)
      }),
      { numRuns: 300, seed: 1 },
    )
  })

  it('makes the same plan into memory that held another', () => {
    fc.assert(
      fc.property(routings, fc.nat(), ({ ids, tokens, topK, experts, rowAlignment, padding }, dirt) => {
        const shape = { topK, experts, rowAlignment }
        const memory = lendPlanMemory(new HostMemoryLender(), shape, tokens)
        for (const list of [memory.counts, memory.starts, memory.mIndices, memory.invPerm]) list.fill(dirt)
        const at = spread(ids, topK, padding)
        expect(planPermute(at, tokens, shape, memory)).toEqual(planPermute(at, tokens, shape))
      }),
      { numRuns: 100, seed: 2 },
    )
  })

  it('refuses ids, alignments and batches that cannot be', () => {
    const shape = { topK: 1, experts: 3, rowAlignment: 4 }
    const code = (run: () => unknown): string | null => {
      try {
        run()
        return null
      } catch (error) {
        return error instanceof ExpertLayoutError ? error.code : 'another error'
      }
    }
    const ids = (...list: number[]) => spread(list, 1, 0)
    expect(code(() => planPermute(ids(0, 2, -1), 3, shape))).toBe(null)
    expect(code(() => planPermute(ids(0, 3), 2, shape))).toBe('SY_EXPERTS_BAD_ID')
    expect(code(() => planPermute(ids(-2), 1, shape))).toBe('SY_EXPERTS_BAD_ID')
    expect(code(() => planPermute(ids(0), 1, { ...shape, rowAlignment: 0 }))).toBe('SY_EXPERTS_BAD_ALIGNMENT')
    expect(code(() => permutedRowsBound(1, 1, 1.5))).toBe('SY_EXPERTS_BAD_ALIGNMENT')
    const memory = lendPlanMemory(new HostMemoryLender(), shape, 2)
    expect(code(() => planPermute(ids(0, 0, 0), 3, shape, memory))).toBe('SY_EXPERTS_TOO_MANY_ROWS')
  })
})

describe('permutedRowsBound', () => {
  it('is the most that any counts need, and some counts need it', () => {
    const cases = fc.record({
      pairs: fc.integer({ min: 0, max: 8 }),
      experts: fc.integer({ min: 1, max: 4 }),
      rowAlignment: fc.integer({ min: 1, max: 5 }),
    })
    fc.assert(
      fc.property(cases, ({ pairs, experts, rowAlignment }) => {
        let most = 0
        const spreadOver = (counts: number[], left: number): void => {
          if (counts.length === experts - 1) most = Math.max(most, permutedRows([...counts, left], rowAlignment))
          else for (let n = 0; n <= left; n++) spreadOver([...counts, n], left - n)
        }
        spreadOver([], pairs)
        expect(permutedRowsBound(pairs, experts, rowAlignment)).toBe(most)
      }),
      { numRuns: 200, seed: 3 },
    )
  })
})

/** Tables of a page by the bold caption before them: rows of cells, without the head. */
function tablesOf(page: string): ReadonlyMap<string, readonly (readonly string[])[]> {
  const tables = new Map<string, string[][]>()
  for (const [, caption, body] of page.matchAll(/^\*\*(.+?)\*\*.*\n\n((?:\|.*\n)+)/gm)) {
    const rows = body!.trim().split('\n').slice(2)
    tables.set(
      caption!,
      rows.map(row =>
        row
          .split('|')
          .slice(1, -1)
          .map(cell => cell.trim()),
      ),
    )
  }
  return tables
}

describe('the worked example of docs/experts.md', () => {
  const tables = tablesOf(readFileSync(new URL('../../../docs/experts.md', import.meta.url), 'utf8'))
  /** Numbers of a table from column `from` on. */
  const numbers = (caption: string, from = 1): number[][] =>
    tables.get(caption)!.map(row => row.slice(from).map(cell => Number(cell.replace('−', '-'))))

  const device = createCpuDevice({ kernels: 'reference' })
  const lender = new HostMemoryLender()
  const dense = (rows: number, width: number, values: readonly number[] = []): Operand => {
    const span = lender.lend(rows * width * 4, 'test')
    f32View(span).set(values)
    return { span, offset: 0, stride: width }
  }
  const read = (o: Operand, rows: number): number[][] =>
    Array.from({ length: rows }, (_, r) => [...f32View(o.span).subarray(r * o.stride, (r + 1) * o.stride)])
  /** `perExpert` consecutive rows of a table are the matrix of an expert. */
  const matrix = (values: readonly number[][], perExpert: number): PackedMatrix => {
    const count = values.length / perExpert
    const k = values[0]!.length
    const strideBytes = device.packer.packedBytes('f32', perExpert, k)
    const m: PackedMatrix = {
      kind: 'f32',
      n: perExpert,
      k,
      count,
      strideBytes,
      span: lender.lend(count * strideBytes, 'w'),
    }
    const bytes = new Uint8Array(Float32Array.from(values.flat()).buffer)
    for (let e = 0; e < count; e++)
      device.packer.packMatrix(m, e, 0, perExpert, {
        dtype: 'F32',
        bytes,
        offset: e * perExpert * k,
        strideN: k,
        strideK: 1,
      })
    return m
  }
  const close = (found: readonly number[][], written: readonly number[][]): void => {
    expect(found.map(row => row.map(v => Number(v.toFixed(3)) + 0))).toEqual(written)
  }

  const [x, ids, weights] = [numbers('x'), numbers('ids'), numbers('weights')]
  const [tokens, topK, hidden] = [ids.length, ids[0]!.length, x[0]!.length]
  const [gateUp, down] = [matrix(numbers('gate_up', 2), 4), matrix(numbers('down', 2), 2)]
  const shape = { topK, experts: gateUp.count, rowAlignment: 4 }
  const memory = lendPlanMemory(lender, shape, tokens)
  const plan = planPermute({ data: Int32Array.from(ids.flat()), offset: 0, stride: topK }, tokens, shape, memory)

  it('has the plan', () => {
    const segments = Array.from(plan.counts, (count, e) => [
      count,
      plan.starts[e]!,
      plan.starts[e + 1]! - plan.starts[e]!,
    ])
    expect(segments).toEqual(numbers('segments'))
    expect(numbers('rows', 0).map(([row]) => row)).toEqual([...plan.mIndices.keys()])
    expect(numbers('rows').map(([expert]) => expert)).toEqual([...plan.mIndices])
    const origins = tables.get('rows')!.flatMap(([row, , origin]) => {
      const [token, slot] = (origin!.match(/\d+/g) ?? []).map(Number)
      return token === undefined ? [] : [[Number(row), plan.invPerm[token * topK + slot!]]]
    })
    expect(origins.length).toBe(plan.pairs)
    for (const [row, found] of origins) expect(found).toBe(row)
    expect(numbers('inv_perm').flat()).toEqual([...plan.invPerm])
    const sizes = new Map(tables.get('sizes')!.map(([name, value]) => [name, Number(value)]))
    expect(sizes.get('`M_sum`')).toBe(plan.rows)
    expect(sizes.get('`M_sum` at most, counts unknown')).toBe(memory.rows)
    expect(sizes.get('`expected_m`')).toBe(plan.expectedM)
  })

  it('has the rows, the products and the sums', () => {
    const rows = dense(memory.rows, hidden)
    bindPermute(device.ops, { x: dense(tokens, hidden, x.flat()), rows, width: hidden, topK, memory })(plan)
    const wide = dense(memory.rows, 4)
    bindContiguousGemm(device.ops, { weight: gateUp, x: rows, out: wide, rows: memory.rows, rowAlignment: 4 })(
      plan.mIndices,
      plan.rows,
    )
    const narrow = dense(memory.rows, 2)
    device.ops.gatedActivation({ out: narrow, x: wide, width: 2, activation: { kind: 'silu' } })(plan.rows)
    const ys = dense(memory.rows, hidden)
    bindContiguousGemm(device.ops, { weight: down, x: narrow, out: ys, rows: memory.rows, rowAlignment: 4 })(
      plan.mIndices,
      plan.rows,
    )
    // Padding rows are "–" in the page.
    const valid = tables.get('rows')!.filter(row => row[1] !== '−1')
    const columns = (from: number, to: number) =>
      valid.map(row => row.slice(from, to).map(c => Number(c.replace('−', '-'))))
    const kept = (o: Operand) => read(o, plan.rows).filter((_, r) => plan.mIndices[r]! >= 0)
    expect(valid.length).toBe(plan.pairs)
    close(kept(rows), columns(3, 5))
    close(kept(wide), columns(5, 9))
    close(kept(narrow), columns(9, 11))
    close(kept(ys), columns(11, 13))
  })

  it('has the output of the whole', () => {
    const idSpan = lender.lend(tokens * topK * 4, 'ids')
    i32View(idSpan).set(ids.flat())
    const out = dense(tokens, hidden)
    const kit = { ops: device.ops, wire: referenceWireKernels, lender }
    bindContiguousExperts(kit, {
      x: dense(tokens, hidden, x.flat()),
      ids: { span: idSpan, offset: 0, stride: topK },
      weights: dense(tokens, topK, weights.flat()),
      out,
      topK,
      tokens,
      rowAlignment: 4,
      experts: { gateUp, down, activation: { kind: 'silu' } },
    })(tokens)
    close(read(out, tokens), numbers('out'))
  })
})
