// Traffic of collectives by hand: two DP ranks with 5 and 2 rows, and two attention-TP members that share 7 rows as 4 and 3.
import { expect, it } from 'vitest'
import type { Operation, OperationArgs, OperationKind, Ref } from './operation.js'
import { trafficOf } from './traffic.js'

const ref = (width: number): Ref => ({ buffer: 'b', column: 0, width })

const op = <K extends OperationKind>(kind: K, args: OperationArgs[K]): Operation =>
  ({ kind, layer: 0, rows: 'padded', args, label: '', yieldBefore: false }) as unknown as Operation

/** DP rank 0's first attention-TP member. */
const rows = { tokens: 5, padded: 5, gathered: 7, slice: 3, received: 0, logitRows: 2, gatheredLogits: 3 }
const traffic = (o: Operation, ranks = 2) => {
  const found = trafficOf(o, rows, () => ranks)
  return found && [found.sent, found.received]
}

it('a gather sends the own rows and receives the others', () => {
  const gather = op('all_gather', { out: ref(8), x: ref(8), group: 'attnDp', counts: 'dp' })
  expect(traffic(gather)).toEqual([5 * 8 * 4, 2 * 8 * 4])
  const slices = op('all_gather', { out: ref(8), x: ref(8), group: 'attnTp', counts: 'attnTp' })
  expect(traffic(slices)).toEqual([3 * 8 * 4, 2 * 8 * 4])
})

it('an all-reduce sends its rows once and receives them of each other rank', () => {
  const reduce = op('all_reduce', { x: ref(8), group: 'tp' })
  expect(traffic(reduce)).toEqual([5 * 8 * 4, 5 * 8 * 4])
  expect(traffic(reduce, 4)).toEqual([5 * 8 * 4, 3 * 5 * 8 * 4])
})

it('a reduce-scatter sends all rows and receives the own ones of each other rank', () => {
  const scatter = op('reduce_scatter', { out: ref(8), x: ref(8), group: 'attnDp', counts: 'dp' })
  expect(traffic(scatter)).toEqual([7 * 8 * 4, 5 * 8 * 4])
})

it('a reduction into a norm sends what a reduction sends, and receives the rows that have tokens', () => {
  const args = { out: ref(8), residual: ref(8), x: ref(8), weight: 'w', eps: 1 }
  const norm = (given: { group: 'tp' | 'attnTp'; counts: 'tp' | 'dp' | null }) =>
    op('reduce_norm', { ...args, ...given })
  expect(traffic(norm({ group: 'tp', counts: 'tp' }))).toEqual([7 * 8 * 4, 5 * 8 * 4])
  expect(traffic(norm({ group: 'tp', counts: 'dp' }), 4)).toEqual([7 * 8 * 4, 3 * 5 * 8 * 4])
  expect(traffic(norm({ group: 'attnTp', counts: null }))).toEqual([5 * 8 * 4, 5 * 8 * 4])
})

it('a gather of columns sends its columns of all rows and receives the others of the own rows', () => {
  const all = { out: ref(30), x: ref(10), group: 'tp', widths: [10, 20] } as const
  expect(traffic(op('gather_columns', { ...all, counts: 'logits' }))).toEqual([3 * 10 * 4, 2 * 20 * 4])
  expect(traffic(op('gather_columns', { ...all, counts: null }))).toEqual([5 * 10 * 4, 5 * 20 * 4])
})

it('a group of one moves nothing; work on one rank is no traffic', () => {
  expect(traffic(op('all_reduce', { x: ref(8), group: 'tp' }), 1)).toEqual([0, 0])
  expect(traffic(op('copy', { out: ref(8), x: ref(8) }))).toBe(null)
})
