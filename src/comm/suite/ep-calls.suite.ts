// Whole calls of an ExpertBuffer on one rank, each compared with the brute-force all-to-all while it runs.
import type { Step } from '../../runtime/wait.js'
import type { CollectiveTag } from '../communicator.js'
import type { ExpertBuffer, ExpertRows, LowLatencyReceived, NormalHandle, NormalReceived, Payload } from '../index.js'
import { wireFormat } from '../wire/format.js'
import { operandRows, wireRows } from '../wire/kernels.js'
import { referenceWireKernels } from '../wire/reference.js'
import {
  combinedByOrigin,
  combinedBySender,
  type EpCase,
  emptyRows,
  expectedRows,
  expertOutput,
  firstExpert,
  partialRow,
  readInts,
  readRows,
  routingOf,
  same,
  toHost,
  tokenRows,
  writeRows,
} from './ep-case.suite.js'

export const tag = (operation: number, label = `operation ${operation}`): CollectiveTag => ({
  operation,
  layer: 3,
  label,
})

const upTo = (n: number): number[] => Array.from({ length: n }, (_, i) => i)

/** Rows of a payload, decoded. */
function payloadRows(x: Payload, rows: readonly number[], hidden: number): number[][] {
  if (x.kind === 'f32') return readRows(x.rows, rows, hidden)
  const out = emptyRows(Math.max(0, ...rows) + 1, hidden)
  const plain = operandRows(out, wireFormat('f32', hidden))
  const wire = wireRows({ ...x.rows, span: toHost(x.rows.span) })
  for (const r of rows) referenceWireKernels.transfer({ from: wire, to: plain, n: 1, fromRow: r, toRow: r })
  return readRows(out, rows, hidden)
}

export function checkNormal(c: EpCase, b: ExpertBuffer, r: NormalReceived, call: number, dead = -1): void {
  const { hidden, topK, normal } = c.config
  const expected = expectedRows(c, b.member, call, normal.dispatchWire, dead)
  const { handle } = r
  const rows = upTo(expected.length)
  same(handle.received, expected.length, 'number of received rows', c)
  same(
    payloadRows(r.x, rows, hidden),
    expected.map(e => e.x),
    'received rows',
    c,
  )
  same(
    readInts(r.ids, rows, topK),
    expected.map(e => e.ids),
    'ids',
    c,
  )
  same(
    readRows(r.weights, rows, topK),
    expected.map(e => e.weights),
    'weights',
    c,
  )
  same(
    readInts(r.sourceToken, rows, 1).flat(),
    expected.map(e => e.token),
    'source tokens',
    c,
  )
  const starts = upTo(c.size + 1).map(s => expected.filter(e => e.source < s).length)
  same(handle.sourceStart, starts, 'starts of sources', c)
  const pairs = upTo(c.config.expertsOfMember[b.member]!).map(
    e => expected.flatMap(row => row.ids).filter(i => i === e).length,
  )
  same(handle.tokensPerExpert, pairs, 'tokens of experts', c)
  const rest = upTo(handle.bound).slice(expected.length)
  same(
    readInts(r.ids, rest, topK),
    rest.map(() => Array<number>(topK).fill(-1)),
    'ids beyond what was received',
    c,
  )
}

/** The experts' work on a normal result, into its own partial rows or into the caller's. */
export function* finishNormal(
  c: EpCase,
  b: ExpertBuffer,
  r: NormalReceived,
  call: number,
  own: boolean,
  dead = -1,
): Step<number[][]> {
  const { hidden, normal } = c.config
  const expected = expectedRows(c, b.member, call, normal.dispatchWire, dead)
  const partials = own ? r.partials : emptyRows(expected.length, hidden)
  writeRows(
    partials,
    expected.map(e => partialRow(c, b.member, e)),
    upTo(expected.length),
  )
  const out = emptyRows(c.tokens[b.member]!, hidden)
  const receive = yield* b.sendCombine(tag(call * 10 + 1), r.handle, out, own ? {} : { partials })
  yield* receive()
  const rows = readRows(out, upTo(c.tokens[b.member]!), hidden)
  same(rows, combinedBySender(c, b.member, call, [normal.dispatchWire, normal.combineWire], dead), 'combined rows', c)
  same(r.handle.alive, false, 'alive', c)
  return rows
}

/** One normal dispatch and combine, stage by stage, maybe from a cached handle or in the worst case. */
export function* normalCall(
  c: EpCase,
  b: ExpertBuffer,
  call: number,
  options: { cached?: NormalHandle; worstCase?: number; dead?: number } = {},
): Step<NormalHandle> {
  const x: Payload = { kind: 'f32', rows: tokenRows(c, b.member, call) }
  const { cached, worstCase, dead } = options
  const handle = cached
    ? yield* b.renotify(tag(call * 10), cached)
    : yield* b.notify(tag(call * 10), routingOf(c, b.member), worstCase === undefined ? {} : { worstCase })
  const receive = yield* b.send(tag(call * 10), handle, x)
  const { result } = yield* receive()
  checkNormal(c, b, result, call, dead)
  yield* finishNormal(c, b, result, call, call % 2 === 0, dead)
  return handle
}

export function checkLowLatency(c: EpCase, b: ExpertBuffer, r: LowLatencyReceived, call: number, dead = -1): void {
  const { hidden, topK, lowLatency, expertsOfMember } = c.config
  const { slots } = lowLatency
  const expected = expectedRows(c, b.member, call, lowLatency.dispatchWire, dead)
  const perSource = upTo(c.size).map(s => expected.filter(e => e.source === s).length)
  same(r.tokensPerSource, perSource, 'tokens of sources', c)
  const slotOf = perSource.flatMap((n, s) => upTo(n).map(i => s * slots + i))
  same(
    payloadRows(r.x, slotOf, hidden),
    expected.map(e => e.x),
    'rows in slots',
    c,
  )
  same(
    readInts(r.ids, slotOf, topK),
    expected.map(e => e.ids),
    'ids of slots',
    c,
  )
  same(
    readRows(r.weights, slotOf, topK),
    expected.map(e => e.weights),
    'weights of slots',
    c,
  )
  same(
    readInts(r.sourceToken, slotOf, 1).flat(),
    expected.map(e => e.token),
    'source tokens of slots',
    c,
  )
  const used = new Set(slotOf)
  const free = upTo(c.size * slots).filter(s => !used.has(s))
  same(
    readInts(r.ids, free, topK),
    free.map(() => Array<number>(topK).fill(-1)),
    'ids of empty slots',
    c,
  )
  for (let e = 0; e < expertsOfMember[b.member]!; e++) {
    let begin = 0
    for (let s = 0; s < c.size; s++) {
      const block = expected.flatMap((row, i) => (row.source === s && row.ids.includes(e) ? [slotOf[i]!] : []))
      const at = (e * c.size + s) * 2
      same([r.ranges[at], r.ranges[at + 1]], [begin, block.length], `range of expert ${e}, source ${s}`, c)
      const rows = readInts(
        { ...r.slotOfRow, offset: r.slotOfRow.offset + e * r.slotOfRow.stride + begin },
        [0],
        block.length,
      )
      same(rows[0], block, `slots of expert ${e}, source ${s}`, c)
      begin += block.length
    }
    same(r.tokensPerExpert[e], begin, `rows of expert ${e}`, c)
  }
}

/** What the experts make of a low-latency result, in either form. */
export function expertRows(
  c: EpCase,
  b: ExpertBuffer,
  r: LowLatencyReceived,
  call: number,
  kind: ExpertRows['kind'],
  dead = -1,
): ExpertRows {
  const { hidden, lowLatency, expertsOfMember } = c.config
  const expected = expectedRows(c, b.member, call, lowLatency.dispatchWire, dead)
  const bySlot = new Map<number, number[]>()
  const filled = new Int32Array(c.size)
  for (const row of expected) {
    const slot = row.source * lowLatency.slots + filled[row.source]!
    filled[row.source] = filled[row.source]! + 1
    bySlot.set(slot, kind === 'partials' ? partialRow(c, b.member, row) : [...row.x])
  }
  if (kind === 'partials') {
    const rows = emptyRows(r.capacity, hidden)
    writeRows(rows, [...bySlot.values()], [...bySlot.keys()])
    return { kind, rows }
  }
  const rows = emptyRows(expertsOfMember[b.member]! * r.capacity, hidden)
  const from = firstExpert(c, b.member)
  for (let e = 0; e < expertsOfMember[b.member]!; e++) {
    const slotsOf = readInts(r.slotOfRow, [e], r.capacity)[0]!
    for (let j = 0; j < r.tokensPerExpert[e]!; j++) {
      const x = bySlot.get(slotsOf[j]!)!
      writeRows(rows, [x.map(v => expertOutput(v, from + e))], [e * r.capacity + j])
    }
  }
  return { kind, rows }
}

export function* lowLatencyCall(c: EpCase, b: ExpertBuffer, call: number, dead = -1): Step<number[][]> {
  const x: Payload = { kind: 'f32', rows: tokenRows(c, b.member, call) }
  const receive = yield* b.sendLowLatency(tag(call * 10), routingOf(c, b.member), x)
  const { result } = yield* receive()
  checkLowLatency(c, b, result, call, dead)
  return yield* finishLowLatency(c, b, result, call, dead)
}

export function* finishLowLatency(
  c: EpCase,
  b: ExpertBuffer,
  r: LowLatencyReceived,
  call: number,
  dead = -1,
): Step<number[][]> {
  const { hidden, lowLatency } = c.config
  const wires: [typeof lowLatency.dispatchWire, typeof lowLatency.combineWire] = [
    lowLatency.dispatchWire,
    lowLatency.combineWire,
  ]
  // Sums of quantised rows are rounded as the kernels do; the others are exact, so they must not differ by a bit.
  const exact = wires[0] === 'f32' || wires[0] === 'bf16'
  const reduced = lowLatency.reduce === 'sender'
  const kind = reduced && (!exact || call % 2 === 1) ? 'partials' : 'experts'
  const out = emptyRows(c.tokens[b.member]!, hidden)
  const receive = yield* b.sendCombineLowLatency(
    tag(call * 10 + 1),
    r.handle,
    expertRows(c, b, r, call, kind, dead),
    out,
  )
  yield* receive()
  const rows = readRows(out, upTo(c.tokens[b.member]!), hidden)
  const expected = reduced
    ? combinedBySender(c, b.member, call, wires, dead)
    : combinedByOrigin(c, b.member, call, wires, dead)
  if (reduced || (exact && (wires[1] === 'f32' || wires[1] === 'bf16'))) same(rows, expected, 'combined rows', c)
  else
    rows.forEach((row, t) => {
      const size = Math.max(1, ...expected[t]!.map(Math.abs))
      row.forEach((v, i) => {
        if (!(Math.abs(v - expected[t]![i]!) <= 2 ** -20 * size)) same(rows, expected, 'combined rows', c)
      })
    })
  return rows
}
