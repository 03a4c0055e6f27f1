// Paged attention against a float64 oracle, and the promise that a row's bits depend on nothing but its own sequence:
// not on the batch, the chunks, the page size, or pages already freed before a window.
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { Operand } from '../ops.js'
import {
  at,
  bitsOf,
  expectGuards,
  expectSameBits,
  fillInts,
  from,
  type Implementation,
  noise,
  randomRows,
  rowsOf,
  type TestRows,
  vectorOf,
} from './bench.suite.js'

interface Shape {
  readonly heads: number
  readonly kvHeads: number
  readonly qkWidth: number
  readonly vWidth: number
  /** MLA: the value lies inside the key. */
  readonly shared?: boolean
  readonly window?: number
  readonly sinks?: boolean
}

/** KV of some sequences in pages of one size, in a scrambled order. */
class Pool {
  readonly kv: TestRows
  readonly table: TestRows
  readonly pageSize: number
  readonly keyOffset = 2
  readonly valueOffset: number
  readonly shape: Shape
  constructor(shape: Shape, lengths: readonly number[], pageSize: number) {
    this.shape = shape
    this.pageSize = pageSize
    const keys = shape.kvHeads * shape.qkWidth
    this.valueOffset = shape.shared ? this.keyOffset : this.keyOffset + keys + 3
    const width = this.valueOffset + (shape.shared ? keys : shape.kvHeads * shape.vWidth)
    const pagesOf = lengths.map(l => Math.ceil(l / pageSize))
    const most = Math.max(...pagesOf)
    const pages = pagesOf.reduce((s, p) => s + p, 0)
    this.kv = rowsOf(pages * pageSize, width)
    this.table = fillInts(rowsOf(lengths.length, most), () => -7)
    let next = pages
    lengths.forEach((length, s) => {
      const value = noise(100 + s)
      for (let p = 0; p < pagesOf[s]!; p++) this.table.i[at(this.table, s, p)] = --next
      for (let position = 0; position < length; position++) {
        const slot = at(this.kv, this.slot(s, position))
        for (let c = 0; c < keys; c++) this.kv.f[slot + this.keyOffset + c] = value()
        if (!shape.shared)
          for (let c = 0; c < shape.kvHeads * shape.vWidth; c++) this.kv.f[slot + this.valueOffset + c] = value()
      }
    })
  }

  slot(sequence: number, position: number): number {
    const page = this.table.i[at(this.table, sequence, Math.floor(position / this.pageSize))]!
    return page * this.pageSize + (position % this.pageSize)
  }
}

interface Batch {
  readonly q: TestRows
  readonly out: TestRows
  readonly rowSequence: TestRows
  readonly positions: TestRows
}

function batchOf(shape: Shape, rows: readonly (readonly [sequence: number, position: number])[]): Batch {
  const q = rowsOf(rows.length, shape.heads * shape.qkWidth)
  rows.forEach(([s, p], r) => {
    const value = noise(5000 + s * 997 + p)
    for (let c = 0; c < q.width; c++) q.f[at(q, r, c)] = value() * 3
  })
  return {
    q,
    out: rowsOf(rows.length, shape.heads * shape.vWidth),
    rowSequence: fillInts(rowsOf(rows.length, 1), r => rows[r]![0]),
    positions: fillInts(rowsOf(rows.length, 1), r => rows[r]![1]),
  }
}

const sinksOf = (shape: Shape) => vectorOf(Array.from({ length: shape.heads }, noise(77)))

export function attentionSuite({ ops }: Implementation): void {
  function bind(pool: Pool, b: Batch, first = 0) {
    const { shape } = pool
    const row = (o: Operand): Operand => from(o, first)
    return ops.attention({
      out: row(b.out),
      q: row(b.q),
      kv: pool.kv,
      batch: {
        rowSequence: row(b.rowSequence),
        positions: row(b.positions),
        pageTable: pool.table,
        pageSize: pool.pageSize,
      },
      ...shape,
      keyOffset: pool.keyOffset,
      valueOffset: pool.valueOffset,
      scale: 0.3,
      ...(shape.window ? { window: shape.window } : {}),
      ...(shape.sinks ? { sinks: sinksOf(shape) } : { sinks: undefined }),
    } as Parameters<typeof ops.attention>[0])
  }

  function expectOracle(pool: Pool, b: Batch): void {
    const { heads, kvHeads, qkWidth, vWidth, window, sinks } = pool.shape
    const sink = sinks ? sinksOf(pool.shape).f : undefined
    for (let r = 0; r < b.q.rows; r++) {
      const sequence = b.rowSequence.i[at(b.rowSequence, r)]!
      const position = b.positions.i[at(b.positions, r)]!
      const start = window ? Math.max(0, position - window + 1) : 0
      // The oracle is slow: of long prompts every fourth row, of many heads every ninth.
      if (r > 3 && r < b.q.rows - 4 && r % 4 !== 0) continue
      for (let h = 0; h < heads; h += heads > 16 ? 9 : 1) {
        const kvHead = Math.floor((h * kvHeads) / heads)
        const scores: number[] = []
        for (let p = start; p <= position; p++) {
          const key = at(pool.kv, pool.slot(sequence, p)) + pool.keyOffset + kvHead * qkWidth
          let dot = 0
          for (let c = 0; c < qkWidth; c++) dot += b.q.f[at(b.q, r, h * qkWidth + c)]! * pool.kv.f[key + c]!
          scores.push(dot * 0.3)
        }
        const most = Math.max(...scores, sink ? sink[h]! : Number.NEGATIVE_INFINITY)
        const total = scores.reduce((s, x) => s + Math.exp(x - most), sink ? Math.exp(sink[h]! - most) : 0)
        for (let c = 0; c < vWidth; c++) {
          let want = 0
          scores.forEach((x, i) => {
            const value = at(pool.kv, pool.slot(sequence, start + i)) + pool.valueOffset + kvHead * vWidth
            want += (Math.exp(x - most) / total) * pool.kv.f[value + c]!
          })
          const got = b.out.f[at(b.out, r, h * vWidth + c)]!
          if (!(Math.abs(got - want) < 4e-6)) expect.fail(`row ${r}, head ${h}, column ${c}: ${got}, expected ${want}`)
        }
      }
    }
    expectGuards(b.out)
  }

  const shapes: [string, Shape][] = [
    ['one head', { heads: 1, kvHeads: 1, qkWidth: 16, vWidth: 16 }],
    ['five heads of 16', { heads: 5, kvHeads: 5, qkWidth: 16, vWidth: 16 }],
    ['grouped', { heads: 8, kvHeads: 2, qkWidth: 64, vWidth: 64 }],
    ['a head count that does not divide', { heads: 5, kvHeads: 2, qkWidth: 20, vWidth: 12 }],
    ['odd widths', { heads: 3, kvHeads: 1, qkWidth: 19, vWidth: 7 }],
    ['latent (MLA)', { heads: 6, kvHeads: 1, qkWidth: 40, vWidth: 32, shared: true }],
    ['many heads of one latent', { heads: 130, kvHeads: 1, qkWidth: 24, vWidth: 16, shared: true }],
    ['a window', { heads: 4, kvHeads: 2, qkWidth: 32, vWidth: 32, window: 70 }],
    ['a tiny window', { heads: 4, kvHeads: 4, qkWidth: 8, vWidth: 8, window: 3 }],
    ['sinks', { heads: 4, kvHeads: 2, qkWidth: 32, vWidth: 32, sinks: true }],
    ['a window and sinks', { heads: 4, kvHeads: 1, qkWidth: 16, vWidth: 128, window: 64, sinks: true }],
  ]

  describe.each(shapes)('attention, %s', (_, shape) => {
    const lengths = [200, 1, 65, 131]
    const prompt = Array.from({ length: 65 }, (_row, p) => [2, p] as const)
    const rows = [[0, 199], [1, 0], [3, 130], ...prompt, [0, 63], [0, 64], [3, 127], [3, 128]] as [number, number][]

    it('equals the float64 oracle for prompts and single tokens', () => {
      const pool = new Pool(shape, lengths, 16)
      const b = batchOf(shape, rows)
      bind(pool, b)(rows.length)
      expectOracle(pool, b)
    })

    it('gives the same bits alone, in chunks, and with other page sizes', () => {
      const pool = new Pool(shape, lengths, 16)
      const all = batchOf(shape, rows)
      bind(pool, all)(rows.length)
      for (const [pageSize, chunk] of [
        [16, 1],
        [1, 3],
        [7, 5],
        [64, 2],
        [256, 1000],
      ] as const) {
        const other = new Pool(shape, lengths, pageSize)
        const b = batchOf(shape, rows)
        for (let r = 0; r < rows.length; r += chunk) bind(other, b, r)(Math.min(chunk, rows.length - r))
        expectSameBits(b.out, all.out)
      }
    })
  })

  it('gives a row the same bits in any batch (property)', () => {
    const shape: Shape = { heads: 6, kvHeads: 2, qkWidth: 24, vWidth: 24 }
    const lengths = [90, 130, 64]
    const pool = new Pool(shape, lengths, 8)
    fc.assert(
      fc.property(
        fc.array(
          fc.tuple(fc.integer({ min: 0, max: 2 }), fc.integer({ min: 0, max: 63 }), fc.integer({ min: 1, max: 5 })),
          {
            minLength: 2,
            maxLength: 6,
          },
        ),
        runs => {
          const rows = runs.flatMap(([s, p, n]) =>
            Array.from({ length: n }, (_, i) => [s, Math.min(p + i, lengths[s]! - 1)] as [number, number]),
          )
          const together = batchOf(shape, rows)
          bind(pool, together)(rows.length)
          const alone = batchOf(shape, rows)
          for (let r = 0; r < rows.length; r++) bind(pool, alone, r)(1)
          expectSameBits(together.out, alone.out)
        },
      ),
      { numRuns: 25, seed: 2 },
    )
  })

  it('does not read pages before the window', () => {
    const shape: Shape = { heads: 4, kvHeads: 2, qkWidth: 32, vWidth: 32, window: 40 }
    const pool = new Pool(shape, [200], 8)
    const rows: [number, number][] = [190, 191, 192, 193, 199].map(p => [0, p])
    const before = batchOf(shape, rows)
    bind(pool, before)(rows.length)
    for (let page = 0; page < Math.floor((190 - 39) / 8); page++) pool.table.i[at(pool.table, 0, page)] = 1 << 28
    const after = batchOf(shape, rows)
    bind(pool, after)(rows.length)
    expectSameBits(after.out, before.out)
  })

  it('gives zeros for rows of padding and refuses pages outside the pool', () => {
    const shape: Shape = { heads: 2, kvHeads: 1, qkWidth: 16, vWidth: 16 }
    const pool = new Pool(shape, [20], 8)
    const b = batchOf(shape, [
      [0, 3],
      [-1, 5],
    ])
    bind(pool, b)(2)
    expect(bitsOf(b.out, 1)).toEqual(new Array(32).fill(0))
    expect(bitsOf(b.out, 0)).not.toEqual(new Array(32).fill(0))
    pool.table.i[at(pool.table, 0, 0)] = 1000
    expect(() => bind(pool, b)(1)).toThrow(/outside/)
    const far = batchOf(shape, [[0, 100000]])
    expect(() => bind(pool, far)(1)).toThrow(/outside/)
  })

  it('is exact for values that are all equal, whatever the scores', () => {
    const shape: Shape = { heads: 2, kvHeads: 2, qkWidth: 8, vWidth: 8 }
    const pool = new Pool(shape, [150], 32)
    for (let s = 0; s < pool.kv.rows; s++)
      for (let c = 0; c < 16; c++) pool.kv.f[at(pool.kv, s, pool.valueOffset + c)] = 1
    const b = batchOf(shape, [[0, 149]])
    for (let c = 0; c < 16; c++) b.q.f[at(b.q, 0, c)] = randomRows(c, 1, 1).f[3]! * 200
    bind(pool, b)(1)
    for (let c = 0; c < 16; c++) expect(b.out.f[at(b.out, 0, c)]).toBeCloseTo(1, 6)
  })
}
