// Random cases for the ExpertBuffer suite, and the brute-force all-to-all they are compared with: plain loops over all ranks'
// tokens, knowing nothing of buffers. Values are small integers and weights powers of two, so that every sum over experts
// is exact in f32 whatever the order: what is left to compare bit for bit is routing, order, wire rounding and member order.

import { f32View, HostMemoryLender, i32View, type MemoryLender, type MemorySpan } from '../../device/memory.js'
import type { Operand } from '../../device/ops.js'
import { CounterRandom, STREAM } from '../../runtime/random.js'
import type { Routing } from '../expert-buffer.js'
import type { ExpertBufferConfig, LowLatencyConfig, NormalConfig } from '../expert-buffer-config.js'
import { type WireDtype, wireFormat } from '../wire/format.js'
import { operandRows, wireRows } from '../wire/kernels.js'
import { referenceWireKernels } from '../wire/reference.js'

/** Where the suite's operands lie, and how it looks into those that a buffer shows. */
export interface OperandAccess {
  readonly lender: MemoryLender
  /** The span, or a copy of it, where the host can read. */
  toHost(span: MemorySpan): MemorySpan
  /** Brings a copy back that was changed. */
  fromHost(copy: MemorySpan, span: MemorySpan): void
}

const hostLender = new HostMemoryLender()
let access: OperandAccess = { lender: hostLender, toHost: span => span, fromHost: () => {} }

/** For buffers whose operands lie on a device. */
export const useAccess = (other: OperandAccess): void => {
  access = other
}
export const toHost = (span: MemorySpan): MemorySpan => access.toHost(span)

export interface EpCase {
  readonly config: ExpertBufferConfig & { readonly normal: NormalConfig; readonly lowLatency: LowLatencyConfig }
  readonly size: number
  readonly tokens: readonly number[]
  /** [rank][token][slot] */
  readonly ids: readonly (readonly (readonly number[])[])[]
  readonly weights: readonly (readonly (readonly number[])[])[]
  readonly seed: number
}

export const DTYPES: readonly WireDtype[] = ['f32', 'bf16', 'fp8', 'int8']

const totalOf = (counts: readonly number[]): number => counts.reduce((a, b) => a + b, 0)

export interface CaseLimits {
  readonly members?: number
  readonly wires?: readonly WireDtype[]
  /** Default: `wires`. */
  readonly combineWires?: readonly WireDtype[]
  readonly hidden?: readonly number[]
  /** False: rows go straight to their places. */
  readonly rings?: boolean
}

/** Everything about a case follows from its seed: members 2 to 9, uneven experts, empty and hot ranks, masked slots. */
export function randomCase(seed: number, limits: CaseLimits = {}): EpCase {
  const random = new CounterRandom(seed, STREAM.benchmark)
  const pick = <T>(from: readonly T[]): T => from[random.below(from.length)]!
  const size = limits.members ?? 2 + random.below(8)
  const uneven = random.below(3) === 0
  const each = 1 + random.below(5)
  const expertsOfMember = Array.from({ length: size }, (): number => (uneven ? random.below(6) : each))
  if (totalOf(expertsOfMember) === 0) expertsOfMember[random.below(size)] = 3
  const experts = totalOf(expertsOfMember)
  const topK = 1 + random.below(Math.min(random.below(8) === 0 ? 32 : 8, experts))
  const most = 1 + random.below(9)
  const emptyShare = pick([0, 0, 0.3, 0.9])
  const tokens = Array.from({ length: size }, () => (random.unit() < emptyShare ? 0 : random.below(most + 1)))
  const masked = pick([0, 0, 0.2, 0.7])
  const hot = random.below(4) === 0 ? pick(expertsOfMember.map((_, m) => m)) : -1
  const hotFrom = hot < 0 ? 0 : expertsOfMember.slice(0, hot).reduce((a, b) => a + b, 0)
  const ids = tokens.map(n =>
    Array.from({ length: n }, () => {
      const free = Array.from({ length: experts }, (_, e) => e)
      return Array.from({ length: topK }, (_, k) => {
        if (random.unit() < masked) return -1
        const wanted = hotFrom + k
        const at = hot >= 0 && k < expertsOfMember[hot]! ? free.indexOf(wanted) : random.below(free.length)
        return free.splice(Math.max(0, at), 1)[0]!
      })
    }),
  )
  const weights = ids.map(rows => rows.map(row => row.map(() => 2 ** -random.below(5))))
  const plainWires = random.below(2) === 0
  const wires = plainWires && !limits.wires ? (['f32'] as const) : (limits.wires ?? DTYPES)
  const backWires = limits.combineWires ?? wires
  const chunkTokens = 1 + random.below(3)
  const ring = { channels: 1 + random.below(3), chunkTokens, ringTokens: chunkTokens + random.below(6) }
  const normal: NormalConfig = {
    maxTokens: Math.max(1, ...tokens),
    dispatchWire: pick(wires),
    combineWire: pick(backWires),
    transit: random.below(2) === 0 || limits.rings === false ? 'direct' : ring,
  }
  const lowLatency: LowLatencyConfig = {
    slots: Math.max(1, ...tokens) + random.below(3),
    dispatchWire: pick(wires),
    combineWire: pick(backWires),
    reduce: pick(['sender', 'origin']),
  }
  const config = {
    hidden: pick(limits.hidden ?? [1, 7, 16, 33, 130]),
    topK,
    expertsOfMember,
    nodeOfMember: Array.from({ length: size }, (_, m) => Math.floor(m / 3)),
    roundScales: random.below(2) === 0,
    results: pick([1, 2] as const),
    normal,
    lowLatency,
  }
  return { config, size, tokens, ids, weights, seed }
}

/** Element of a rank's token in call `call`: an integer that says who it is. */
export const elementOf = (rank: number, token: number, column: number, call: number): number =>
  ((rank * 37 + token * 11 + column * 5 + call * 3) % 251) - 125

const f32Rows = (rows: number, hidden: number, fill: (row: number, column: number) => number): Operand => {
  const stride = hidden + 3
  const span = access.lender.lend((rows * stride + 3) * 4, 'case')
  const view = f32View(span)
  for (let r = 0; r < rows; r++) for (let c = 0; c < hidden; c++) view[3 + r * stride + c] = fill(r, c)
  return { span, offset: 3, stride }
}

export const tokenRows = (c: EpCase, rank: number, call: number): Operand =>
  f32Rows(c.tokens[rank]!, c.config.hidden, (t, column) => elementOf(rank, t, column, call))

export const emptyRows = (rows: number, hidden: number): Operand => f32Rows(rows, hidden, () => Number.NaN)

export function routingOf(c: EpCase, rank: number): Routing {
  const n = c.tokens[rank]!
  const { topK } = c.config
  const stride = topK + 1
  const ids = { span: access.lender.lend((n * stride + 1) * 4, 'ids'), offset: 1, stride }
  const weights = { span: access.lender.lend((n * stride + 1) * 4, 'weights'), offset: 1, stride }
  const [i, w] = [i32View(ids.span), f32View(weights.span)]
  for (let t = 0; t < n; t++)
    for (let k = 0; k < topK; k++) {
      i[1 + t * stride + k] = c.ids[rank]![t]![k]!
      w[1 + t * stride + k] = c.weights[rank]![t]![k]!
    }
  return { tokens: n, ids, weights }
}

/** What a row is after travelling in a format. */
export function travelled(row: readonly number[], dtype: WireDtype, roundScales: boolean): number[] {
  if (dtype === 'f32') return [...row]
  const format = wireFormat(dtype, row.length, roundScales)
  const x = operandRows(
    f32Rows(1, row.length, (_, c) => row[c]!),
    wireFormat('f32', row.length),
  )
  const w = wireRows({ format, span: hostLender.lend(format.rowBytes, 'travelled') })
  referenceWireKernels.transfer({ from: x, to: w, n: 1 })
  referenceWireKernels.transfer({ from: w, to: x, n: 1 })
  return [...x.f32.subarray(3, 3 + row.length)]
}

export const firstExpert = (c: EpCase, member: number): number =>
  c.config.expertsOfMember.slice(0, member).reduce((a, b) => a + b, 0)

/** One received row as it must be. */
export interface ExpectedRow {
  readonly source: number
  readonly token: number
  /** Local ids and weights by slot; -1 and 0 where not here. */
  readonly ids: readonly number[]
  readonly weights: readonly number[]
  readonly x: readonly number[]
}

/** All rows that a member must receive, in (source, token) order. */
export function expectedRows(c: EpCase, member: number, call: number, dtype: WireDtype, dead = -1): ExpectedRow[] {
  const from = firstExpert(c, member)
  const end = from + c.config.expertsOfMember[member]!
  const rows: ExpectedRow[] = []
  for (let source = 0; source < c.size; source++) {
    if (source === dead) continue
    for (let token = 0; token < c.tokens[source]!; token++) {
      const all = c.ids[source]![token]!
      const here = all.map(e => e >= from && e < end)
      if (!here.includes(true)) continue
      const x = Array.from({ length: c.config.hidden }, (_, column) => elementOf(source, token, column, call))
      rows.push({
        source,
        token,
        ids: all.map((e, k) => (here[k] ? e - from : -1)),
        weights: c.weights[source]![token]!.map((w, k) => (here[k] ? w : 0)),
        x: travelled(x, dtype, c.config.roundScales ?? false),
      })
    }
  }
  return rows
}

/** The "expert": multiplies by one more than its physical number. */
export const expertOutput = (x: number, expert: number): number => Math.fround(x * (1 + expert))

/** Partial row of a member: its weighted experts, in slot order. */
export function partialRow(c: EpCase, member: number, row: ExpectedRow): number[] {
  const from = firstExpert(c, member)
  return row.x.map(x => {
    let sum = 0
    row.ids.forEach((e, k) => {
      if (e >= 0) sum = Math.fround(sum + row.weights[k]! * expertOutput(x, from + e))
    })
    return sum
  })
}

/** Combined rows of a rank: members ascending, one row a member, rounded by the wire. */
export function combinedBySender(
  c: EpCase,
  rank: number,
  call: number,
  wires: [WireDtype, WireDtype],
  dead = -1,
): number[][] {
  const out = Array.from({ length: c.tokens[rank]! }, () => Array<number>(c.config.hidden).fill(0))
  const seen = out.map(() => false)
  for (let m = 0; m < c.size; m++) {
    if (m === dead) continue
    for (const row of expectedRows(c, m, call, wires[0], dead)) {
      if (row.source !== rank) continue
      const partial = travelled(partialRow(c, m, row), wires[1], c.config.roundScales ?? false)
      out[row.token] = out[row.token]!.map((v, i) => (seen[row.token] ? Math.fround(v + partial[i]!) : partial[i]!))
      seen[row.token] = true
    }
  }
  return out
}

/** Combined rows of a rank when every expert row travels and the origin weighs and adds. */
export function combinedByOrigin(
  c: EpCase,
  rank: number,
  call: number,
  wires: [WireDtype, WireDtype],
  dead = -1,
): number[][] {
  const { topK, hidden, expertsOfMember } = c.config
  const owner = expertsOfMember.flatMap((n, m) => Array<number>(n).fill(m))
  return Array.from({ length: c.tokens[rank]! }, (_, token) => {
    const plain = Array.from({ length: hidden }, (_, column) => elementOf(rank, token, column, call))
    const x = travelled(plain, wires[0], c.config.roundScales ?? false)
    const sum = Array<number>(hidden).fill(0)
    for (let k = 0; k < topK; k++) {
      const e = c.ids[rank]![token]![k]!
      if (e < 0 || owner[e] === dead) continue
      const y = travelled(
        x.map(v => expertOutput(v, e)),
        wires[1],
        c.config.roundScales ?? false,
      )
      for (let i = 0; i < hidden; i++) sum[i] = sum[i]! + c.weights[rank]![token]![k]! * y[i]!
    }
    return sum.map(Math.fround)
  })
}

/** Rows of an f32 operand. */
export function readRows(o: Operand, rows: readonly number[], width: number): number[][] {
  const view = f32View(access.toHost(o.span))
  return rows.map(r => [...view.subarray(o.offset + r * o.stride, o.offset + r * o.stride + width)])
}

export function readInts(o: Operand, rows: readonly number[], width: number): number[][] {
  const view = i32View(access.toHost(o.span))
  return rows.map(r => [...view.subarray(o.offset + r * o.stride, o.offset + r * o.stride + width)])
}

/** Writes rows of an f32 operand, wherever it lies. */
export function writeRows(o: Operand, rows: readonly (readonly number[])[], at: readonly number[]): void {
  const copy = access.toHost(o.span)
  const view = f32View(copy)
  rows.forEach((row, i) => void view.set(row, o.offset + at[i]! * o.stride))
  access.fromHost(copy, o.span)
}

/** Throws with the case's seed when two things differ in any number. */
export function same(found: unknown, expected: unknown, what: string, c: EpCase): void {
  const text = (v: unknown) =>
    JSON.stringify(v, (_, x) => (Object.is(x, -0) ? 0 : ArrayBuffer.isView(x) ? [...(x as Int32Array)] : x))
  const [a, b] = [text(found), text(expected)]
  if (a !== b) throw new Error(`case ${c.seed}: ${what} is\n${a}\nbut should be\n${b}\nof ${JSON.stringify(c.config)}`)
}
