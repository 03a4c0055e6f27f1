// The Communicator's conformance suite: every implementation runs it, with ranks interleaved in one thread in seeded orders.
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { f32View, HostMemoryLender, i32View } from '../device/memory.js'
import type { Operand } from '../device/ops.js'
import { interleave } from '../runtime/interleave.js'
import { CounterRandom } from '../runtime/random.js'
import type { Step } from '../runtime/wait.js'
import type { CollectiveTag, Communicator } from './communicator.js'

export type MakeGroup = (size: number, payloadBytes: number) => Communicator[]

const tag = (operation: number, layer = 0): CollectiveTag => ({ operation, layer, label: `operation ${operation}` })
const lender = new HostMemoryLender()

/** [rows, width] in memory with some extra columns between rows. */
function operand(rows: number, width: number, gap: number, fill: (row: number, column: number) => number): Operand {
  const stride = width + gap
  const span = lender.lend((rows * stride + gap) * 4, 'test')
  const view = f32View(span)
  for (let r = 0; r < rows; r++) for (let c = 0; c < width; c++) view[gap + r * stride + c] = fill(r, c)
  return { span, offset: gap, stride }
}

const rowsOf = (o: Operand, rows: number, width: number): number[][] => {
  const view = f32View(o.span)
  return Array.from({ length: rows }, (_, r) => [
    ...view.subarray(o.offset + r * o.stride, o.offset + r * o.stride + width),
  ])
}

const value = (member: number, row: number, column: number) =>
  Math.fround(Math.sin(member * 97 + row * 13 + column) * 3)

const groupCase = fc.record({
  counts: fc.array(fc.integer({ min: 0, max: 5 }), { minLength: 1, maxLength: 8 }),
  width: fc.integer({ min: 1, max: 9 }),
  gap: fc.integer({ min: 0, max: 3 }),
  seed: fc.integer({ min: 0, max: 1e6 }),
})

export function communicatorSuite(name: string, makeGroup: MakeGroup): void {
  const run = <T>(members: readonly Communicator[], body: (c: Communicator) => Step<T>, seed = 1): T[] =>
    interleave(members.map(body), seed)

  describe(`Communicator: ${name}`, () => {
    it('gathers unequal rows in member order', () => {
      fc.assert(
        fc.property(groupCase, ({ counts, width, gap, seed }) => {
          const total = counts.reduce((a, b) => a + b, 0)
          const members = makeGroup(counts.length, 4 * 9 * 8 * 5)
          const outs = run(
            members,
            function* (c): Step<number[][]> {
              const x = operand(counts[c.member]!, width, gap, (r, k) => value(c.member, r, k))
              const out = operand(total, width, gap, () => -1)
              yield* c.allGather(tag(1), x, out, width, counts)
              return rowsOf(out, total, width)
            },
            seed,
          )
          const expected = counts.flatMap((n, m) =>
            Array.from({ length: n }, (_, r) => Array.from({ length: width }, (_, k) => value(m, r, k))),
          )
          for (const out of outs) expect(out).toEqual(expected)
        }),
        { numRuns: 60 },
      )
    })

    it('sums in ascending member order, the same bits by all-reduce and by reduce-scatter', () => {
      fc.assert(
        fc.property(groupCase, ({ counts, width, gap, seed }) => {
          const total = counts.reduce((a, b) => a + b, 0)
          const members = makeGroup(counts.length, 4 * 9 * 8 * 5)
          const results = run(
            members,
            function* (c): Step<{ all: number[][]; own: number[][] }> {
              const x = operand(total, width, gap, (r, k) => value(c.member, r, k))
              const out = operand(counts[c.member]!, width, 0, () => -1)
              yield* c.reduceScatter(tag(1), x, out, width, counts)
              yield* c.allReduce(tag(2), x, width, total)
              return { all: rowsOf(x, total, width), own: rowsOf(out, counts[c.member]!, width) }
            },
            seed,
          )
          const expected = Array.from({ length: total }, (_, r) =>
            Array.from({ length: width }, (_, k) => {
              let sum = value(0, r, k)
              for (let m = 1; m < counts.length; m++) sum = Math.fround(sum + value(m, r, k))
              return sum
            }),
          )
          let from = 0
          results.forEach(({ all, own }, m) => {
            expect(all).toEqual(expected)
            expect(own).toEqual(expected.slice(from, from + counts[m]!))
            from += counts[m]!
          })
        }),
        { numRuns: 60 },
      )
    })

    it('shows published rows for sums of the caller, and for gathers takes rows written in place, by turns', () => {
      fc.assert(
        fc.property(groupCase, ({ counts, width, gap, seed }) => {
          const total = counts.reduce((a, b) => a + b, 0)
          const members = makeGroup(counts.length, 4 * 9 * 8 * 5)
          const results = run(
            members,
            function* (c): Step<{ sums: number[][][]; gathered: number[][] }> {
              const from = counts.slice(0, c.member).reduce((a, b) => a + b, 0)
              const rows = { all: total, from, count: counts[c.member]! }
              const sums: number[][][] = []
              const out = operand(total, width, gap, () => -1)
              for (let round = 0; round < 3; round++) {
                const x = operand(total, width, gap, (r, k) => value(c.member + 10 * round, r, k))
                const windows = c.windows(width)
                expect(c.windows(width)).toBe(windows)
                const awaited = c.nextParity
                const parity = yield* c.reduce(tag(2 * round), x, width, rows)
                expect(parity).toBe(awaited)
                const first = i32View(windows[parity].first.span)[windows[parity].first.offset]!
                const published = windows[parity].members.map(m =>
                  rowsOf(m, total, width).slice(first, first + rows.count),
                )
                sums.push(
                  published.reduce((a, rows) => a.map((row, r) => row.map((v, k) => Math.fround(v + rows[r]![k]!)))),
                )
                const own = c.windows(width)[c.nextParity].members[c.member]!
                const to = f32View(own.span)
                sums[round]!.forEach((row, r) => {
                  to.set(row, own.offset + r * own.stride)
                })
                yield* c.allGatherWritten(tag(2 * round + 1), out, width, counts)
              }
              return { sums, gathered: rowsOf(out, total, width) }
            },
            seed,
          )
          const expected = (round: number) =>
            Array.from({ length: total }, (_, r) =>
              Array.from({ length: width }, (_, k) => {
                let sum = value(10 * round, r, k)
                for (let m = 1; m < counts.length; m++) sum = Math.fround(sum + value(m + 10 * round, r, k))
                return sum
              }),
            )
          let from = 0
          results.forEach(({ sums, gathered }, m) => {
            for (const [round, own] of sums.entries()) {
              expect(own).toEqual(expected(round).slice(from, from + counts[m]!))
            }
            expect(gathered).toEqual(expected(2))
            from += counts[m]!
          })
        }),
        { numRuns: 60 },
      )
    })

    it('puts column blocks of unequal widths side by side, for the rows a member asks for', () => {
      const widths = [3, 1, 2]
      const outs = run(makeGroup(3, 256), function* (c): Step<number[][]> {
        const x = operand(4, widths[c.member]!, 1, (r, k) => value(c.member, r, k))
        const out = operand(2, 6, 2, () => -1)
        yield* c.gatherColumns(tag(4), x, out, widths, { all: 4, from: c.member, count: 2 })
        return rowsOf(out, 2, 6)
      })
      outs.forEach((out, member) => {
        const row = (r: number) => widths.flatMap((w, m) => Array.from({ length: w }, (_, k) => value(m, r, k)))
        expect(out).toEqual([row(member), row(member + 1)])
      })
    })

    it('broadcasts from any root and gathers words', () => {
      for (let root = 0; root < 3; root++) {
        const outs = run(makeGroup(3, 256), function* (c): Step<unknown> {
          const x = operand(2, 3, 1, (r, k) => value(c.member, r, k))
          yield* c.broadcast(tag(5), x, 3, 2, root)
          const all = new Int32Array(6)
          yield* c.allGatherWords(tag(6), Int32Array.of(c.member, -c.member), all)
          return [rowsOf(x, 2, 3), [...all]]
        })
        const expected = [0, 1].map(r => [0, 1, 2].map(k => value(root, r, k)))
        for (const out of outs) expect(out).toEqual([expected, [0, -0, 1, -1, 2, -2].map(v => v | 0)])
      }
    })

    it('keeps a fast member from overwriting what a slow one still reads', () => {
      for (let seed = 0; seed < 40; seed++) {
        const outs = run(
          makeGroup(4, 64),
          function* (c): Step<number[]> {
            const seen: number[] = []
            const all = new Int32Array(4)
            for (let i = 0; i < 20; i++) {
              yield* c.allGatherWords(tag(i), Int32Array.of(i * 10 + c.member), all)
              seen.push(...all)
            }
            return seen
          },
          seed,
        )
        const expected = Array.from({ length: 80 }, (_, i) => Math.floor(i / 4) * 10 + (i % 4))
        for (const out of outs) expect(out).toEqual(expected)
      }
    })

    const disagreements: [string, (c: Communicator) => Step<void>, RegExp][] = [
      ['another operation', c => c.barrier(tag(c.member === 1 ? 8 : 7, 3)), /operation.*rank/],
      ['another layer', c => c.barrier(tag(7, c.member === 2 ? 4 : 3)), /layer/],
      [
        'another collective',
        c =>
          c.member === 0
            ? c.barrier(tag(7))
            : c.allReduce(
                tag(7),
                operand(0, 1, 0, () => 0),
                0,
                0,
              ),
        /collective/,
      ],
      [
        'another row count',
        c =>
          c.allReduce(
            tag(7),
            operand(3, 2, 0, () => 0),
            2,
            c.member === 1 ? 3 : 2,
          ),
        /rows/,
      ],
      [
        'another width',
        c =>
          c.allReduce(
            tag(7),
            operand(2, 3, 0, () => 0),
            c.member === 1 ? 3 : 2,
            2,
          ),
        /width/,
      ],
      [
        'a count the others did not expect',
        c =>
          c.allGather(
            tag(7),
            operand(2, 2, 0, () => 0),
            operand(6, 2, 0, () => 0),
            2,
            c.member === 1 ? [1, 2, 1] : [1, 1, 1],
          ),
        /rows/,
      ],
      [
        'other rows written in place than the others expect',
        c =>
          c.allGatherWritten(
            tag(7),
            operand(6, 2, 0, () => 0),
            2,
            c.member === 1 ? [1, 2, 1] : [1, 1, 1],
          ),
        /rows/,
      ],
      [
        'another row count for a sum of its own',
        function* (c): Step<void> {
          const rows = { all: c.member === 1 ? 3 : 2, from: 0, count: 1 }
          yield* c.reduce(
            tag(7),
            operand(3, 2, 0, () => 0),
            2,
            rows,
          )
        },
        /^ranks disagree in reduce .*rows/,
      ],
      [
        'a sum of its own where others gather',
        function* (c): Step<void> {
          const x = operand(2, 2, 0, () => 0)
          if (c.member === 0) yield* c.reduce(tag(7), x, 2, { all: 2, from: 0, count: 2 })
          else yield* c.allReduce(tag(7), x, 2, 2)
        },
        /collective is (reduce|all_reduce) .*(reduce|all_reduce) on rank/,
      ],
    ]
    it.each(disagreements)('names the field when a member arrives with %s', (_, body, pattern) => {
      expect(() => run(makeGroup(3, 256), body)).toThrow(pattern)
    })

    it('names the step when a member is a step behind', () => {
      const members = makeGroup(2, 64)
      members[0]!.beginStep(5)
      members[1]!.beginStep(6)
      expect(() => run(members, c => c.barrier(tag(0)))).toThrow(/step is 5 as rank 0 has it, 6 on rank 1|step is 6/)
    })

    it('refuses a payload that its memory does not hold', () => {
      const members = makeGroup(2, 64)
      expect(() =>
        run(members, c =>
          c.allReduce(
            tag(0),
            operand(9, 9, 0, () => 0),
            9,
            9,
          ),
        ),
      ).toThrow(/bytes a member/)
      const x = operand(9, 9, 0, () => 0)
      const wide = (c: Communicator): Step<unknown> => c.reduce(tag(1), x, 9, { all: 9, from: 0, count: 9 })
      expect(() => run(makeGroup(2, 64), wide)).toThrow(/bytes a member/)
      expect(() => run(makeGroup(2, 64), c => c.allGatherWritten(tag(1), x, 9, [9, 9]))).toThrow(/bytes a member/)
    })

    it('is exact over many random rounds with random shapes', () => {
      const random = new CounterRandom(7, 4)
      for (let round = 0; round < 50; round++) {
        const size = 1 + random.below(6)
        const rows = random.below(4)
        const outs = run(
          makeGroup(size, 1024),
          function* (c): Step<number[][]> {
            const x = operand(rows, 4, 0, (r, k) => value(c.member, r, k))
            for (let i = 0; i < 3; i++) yield* c.allReduce(tag(i), x, 4, rows)
            return rowsOf(x, rows, 4)
          },
          round,
        )
        for (const out of outs) expect(out).toEqual(outs[0])
      }
    })
  })
}
