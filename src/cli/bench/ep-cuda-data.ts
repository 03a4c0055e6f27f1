// Rows and routes of `bench ep --device cuda`, and what must come of them: every byte that a dispatch moved and samples of what a combine
// added are compared with plain loops in this file, in the same run that is timed.
import { type ExpertBufferConfig, type WireFormat, wireFormat } from '../../comm/index.js'
import { INFO } from '../../comm/peer/index.js'
import { operandRows, wireRows } from '../../comm/wire/kernels.js'
import { referenceWireKernels } from '../../comm/wire/reference.js'
import { f32View, HostMemoryLender, u8View } from '../../device/memory.js'
import type { NodeRank, PeerNode } from './ep-cuda-node.js'

/** i32 and f32 [tokens, topK] of each rank, and bf16 rows [tokens, hidden]. */
export interface EpData {
  readonly tokens: readonly number[]
  readonly ids: readonly Int32Array[]
  readonly weights: readonly Float32Array[]
  readonly x: readonly Uint16Array[]
}

const word = new Float32Array(1)
const wordBits = new Uint32Array(word.buffer)

export function bf16Bits(value: number): number {
  word[0] = value
  const u = wordBits[0]!
  return ((u + 0x7fff + ((u >>> 16) & 1)) >>> 16) & 0xffff
}
export function fromBits(bits: number): number {
  wordBits[0] = bits << 16
  return word[0]!
}
export const roundBf16 = (value: number): number => fromBits(bf16Bits(value))

const VALUES = Uint16Array.from({ length: 256 }, (_, i) => bf16Bits(i - 128))

/** Whole numbers of 8 bits, different in every row; weights are powers of two. So sums over experts are exact in f32. */
export function drawData(config: ExpertBufferConfig, ids: readonly Int32Array[]): EpData {
  const { hidden, topK } = config
  const x = ids.map((chosen, rank) => {
    const tokens = chosen.length / topK
    const rows = new Uint16Array(tokens * hidden)
    for (let t = 0; t < tokens; t++) {
      let h = Math.imul(t + 1, 0x9e3779b1) ^ Math.imul(rank + 1, 0x85ebca6b)
      for (let c = 0; c < hidden; c++) {
        h = (Math.imul(h, 1664525) + 1013904223) | 0
        rows[t * hidden + c] = VALUES[h >>> 24]!
      }
    }
    return rows
  })
  const weights = ids.map(chosen => Float32Array.from(chosen, (e, i) => 2 ** -((e * 7 + i) & 3)))
  return { ids, weights, x, tokens: ids.map(chosen => chosen.length / topK) }
}

interface Expected {
  readonly source: number
  readonly token: number
}

const firstExpert = (config: ExpertBufferConfig, member: number): number =>
  config.expertsOfMember.slice(0, member).reduce((a, b) => a + b, 0)

/** Rows that a member receives, in (source, token) order. */
export function expectedAt(config: ExpertBufferConfig, data: EpData, member: number): Expected[] {
  const from = firstExpert(config, member)
  const end = from + config.expertsOfMember[member]!
  const { topK } = config
  return data.ids.flatMap((ids, source) => {
    const found: Expected[] = []
    for (let token = 0; token < data.tokens[source]!; token++)
      for (let k = 0; k < topK; k++) {
        const e = ids[token * topK + k]!
        if (e >= from && e < end) {
          found.push({ source, token })
          break
        }
      }
    return found
  })
}

const bytesOf = (view: ArrayBufferView): Buffer => Buffer.from(view.buffer, view.byteOffset, view.byteLength)

function fail(what: string): never {
  throw new Error(`wrong result: ${what}`)
}

/** A row as it travels. */
export function travelling(format: WireFormat, row: Uint16Array): Buffer {
  if (format.dtype === 'bf16') return bytesOf(row)
  const lender = new HostMemoryLender()
  const span = lender.lend(row.length * 4, 'row')
  f32View(span).set(Float32Array.from(row, fromBits))
  const wire = lender.lend(format.rowBytes, 'wire row')
  const from = operandRows({ span, offset: 0, stride: row.length }, wireFormat('f32', row.length))
  referenceWireKernels.transfer({ from, to: wireRows({ format, span: wire }), n: 1 })
  return Buffer.from(u8View(wire).slice(0, format.scaleOffset + 4 * format.scales))
}

/** Rows of one source and token, whole, or every `every`-th. */
function checkRows(
  what: string,
  found: Buffer,
  stride: number,
  rows: readonly { readonly at: number; readonly source: number; readonly token: number }[],
  data: EpData,
  format: WireFormat,
): void {
  const every = format.dtype === 'bf16' ? 1 : Math.max(1, Math.floor(rows.length / 200))
  const { hidden } = format
  for (let i = 0; i < rows.length; i += every) {
    const { at, source, token } = rows[i]!
    const want = travelling(format, data.x[source]!.subarray(token * hidden, (token + 1) * hidden))
    if (want.compare(found, at * stride, at * stride + want.length) !== 0)
      fail(`${what}: row ${at} is not token ${token} of rank ${source}`)
  }
}

function checkMeta(
  what: string,
  config: ExpertBufferConfig,
  data: EpData,
  member: number,
  rows: readonly { readonly at: number; readonly source: number; readonly token: number }[],
  [ids, weights, tokens]: readonly [Int32Array, Float32Array, Int32Array],
): void {
  const { topK } = config
  const from = firstExpert(config, member)
  const end = from + config.expertsOfMember[member]!
  for (const { at, source, token } of rows) {
    if (tokens[at] !== token) fail(`${what}: row ${at} says token ${tokens[at]}, not ${token}`)
    for (let k = 0; k < topK; k++) {
      const e = data.ids[source]![token * topK + k]!
      const here = e >= from && e < end
      const [id, weight] = [ids[at * topK + k], weights[at * topK + k]]
      if (id !== (here ? e - from : -1) || weight !== (here ? data.weights[source]![token * topK + k] : 0))
        fail(`${what}: row ${at}, choice ${k} is ${id} with ${weight} for expert ${e}`)
    }
  }
}

/** Everything that a normal dispatch left at every member. `expanded`: where rows went, in bf16. */
export function checkDispatch(
  node: PeerNode,
  data: EpData,
  parity: number,
  expanded?: { readonly at: readonly number[]; readonly rows: number },
): void {
  node.settle()
  node.ranks.forEach((rank, m) => {
    const { peer } = rank
    const { config, region } = peer
    const { topK, hidden } = config
    const expected = expectedAt(config, data, m)
    const locals = config.expertsOfMember[m]!
    const info = peer.read('info', parity, INFO.experts + 3 * locals)
    if (info[INFO.received] !== expected.length)
      fail(`rank ${m} received ${info[INFO.received]} rows, not ${expected.length}`)
    const rows = expected.map((e, at) => ({ ...e, at }))
    const n = expected.length
    const ids = peer.read('ids', parity, n * topK)
    const weights = new Float32Array(peer.read('weights', parity, n * topK).buffer)
    const tokens = peer.read('tokens', parity, n)
    checkMeta(`dispatch to rank ${m}`, config, data, m, rows, [ids, weights, tokens])
    const format = wireFormat(config.normal!.dispatchWire, hidden, config.roundScales ?? false)
    const pairs = new Int32Array(locals)
    for (const id of ids) if (id >= 0) pairs[id] = pairs[id]! + 1
    pairs.forEach((count, e) => {
      if (info[INFO.experts + e] !== count)
        fail(`rank ${m}: expert ${e} has ${info[INFO.experts + e]} rows, not ${count}`)
    })
    if (!expanded) {
      const found = Buffer.alloc(n * region.rowBytes)
      rank.get(found, peer.at('rows', parity))
      checkRows(`dispatch to rank ${m}`, found, region.rowBytes, rows, data, format)
      return
    }
    const places = peer.read('places', parity, n * topK)
    const stride = hidden * 2
    const found = Buffer.alloc(expanded.rows * stride)
    rank.get(found, expanded.at[m]!)
    const taken = new Set<number>()
    const placed = rows.flatMap(({ at, source, token }) =>
      Array.from({ length: topK }, (_, k) => {
        const [id, place] = [ids[at * topK + k]!, places[at * topK + k]!]
        if (id < 0) {
          if (place !== -1) fail(`rank ${m}: row ${at}, choice ${k} has a place but no expert`)
          return []
        }
        const start = info[INFO.experts + locals + id]!
        if (place < start || place >= start + pairs[id]! || taken.has(place))
          fail(`rank ${m}: row ${at}, choice ${k} of expert ${id} lies at ${place}, its rows at ${start} and on`)
        taken.add(place)
        return [{ at: place, source, token }]
      }).flat(),
    )
    checkRows(`expanded dispatch to rank ${m}`, found, stride, placed, data, wireFormat('bf16', hidden))
  })
}

/** Combined rows when every expert gives its row back as it is: Σ of weights times the row, rounded as it travels. */
export function checkCombined(
  node: PeerNode,
  data: EpData,
  out: readonly number[],
  ownExact: boolean,
  step = 13,
): void {
  node.settle()
  const { config } = node.ranks[0]!.peer
  const { topK, hidden, expertsOfMember } = config
  const owner = expertsOfMember.flatMap((n, m) => Array<number>(n).fill(m))
  node.ranks.forEach((rank, r) => {
    const row = new Uint16Array(hidden)
    for (let t = r; t < data.tokens[r]!; t += step) {
      const sums = new Map<number, number>()
      for (let k = 0; k < topK; k++) {
        const e = data.ids[r]![t * topK + k]!
        if (e < 0) continue
        const m = owner[e]!
        sums.set(m, (sums.get(m) ?? 0) + data.weights[r]![t * topK + k]!)
      }
      const members = [...sums.keys()].sort((a, b) => a - b)
      rank.get(row, out[r]! + t * hidden * 2)
      for (let c = 0; c < hidden; c++) {
        const x = fromBits(data.x[r]![t * hidden + c]!)
        let sum = 0
        for (const m of members) {
          const part = sums.get(m)! * x
          sum = Math.fround(sum + (ownExact && m === r ? part : roundBf16(part)))
        }
        if (bf16Bits(sum) !== row[c] && !(sum === 0 && (row[c]! & 0x7fff) === 0))
          fail(`combine on rank ${r}: token ${t}, column ${c} is ${fromBits(row[c]!)}, not ${roundBf16(sum)}`)
      }
    }
  })
}

/** Slots, their lists and what lies in them. */
export function checkSlots(node: PeerNode, data: EpData, parity: number): void {
  node.settle()
  node.ranks.forEach((rank: NodeRank, m) => {
    const { peer } = rank
    const { config, region, size } = peer
    const { slots, topK, hidden } = { ...config, slots: region.slots }
    const locals = config.expertsOfMember[m]!
    const expected = expectedAt(config, data, m)
    const info = peer.read('slotInfo', parity, size + locals + 2 * locals * size)
    const filled = new Int32Array(size)
    const rows = expected.map(e => {
      const at = e.source * slots + filled[e.source]!
      filled[e.source] = filled[e.source]! + 1
      return { ...e, at }
    })
    filled.forEach((n, s) => {
      if (info[s] !== n) fail(`rank ${m}: ${info[s]} slots of rank ${s}, not ${n}`)
    })
    const all = size * slots
    const ids = peer.read('slotIds', parity, all * topK)
    const weights = new Float32Array(peer.read('slotWeights', parity, all * topK).buffer)
    const tokens = peer.read('slotTokens', parity, all)
    checkMeta(`slots of rank ${m}`, config, data, m, rows, [ids, weights, tokens])
    const format = wireFormat(config.lowLatency!.dispatchWire, hidden, config.roundScales ?? false)
    const found = Buffer.alloc(all * region.slotBytes)
    rank.get(found, peer.at('slots', parity))
    checkRows(`slots of rank ${m}`, found, region.slotBytes, rows, data, format)
    const used = new Set(rows.map(r => r.at))
    for (let i = 0; i < all * topK; i++)
      if (!used.has(Math.floor(i / topK)) && ids[i] !== -1)
        fail(`rank ${m}: empty slot ${Math.floor(i / topK)} has an expert`)
    const slotOfRow = peer.read('slotOfRow', parity, locals * all)
    const rowOfSlot = peer.read('rowOfSlot', parity, all * topK)
    for (let e = 0; e < locals; e++) {
      const mine = rows.filter(r => ids.subarray(r.at * topK, (r.at + 1) * topK).includes(e)).map(r => r.at)
      if (info[size + e] !== mine.length) fail(`rank ${m}: expert ${e} has ${info[size + e]} rows, not ${mine.length}`)
      mine.forEach((slot, j) => {
        if (slotOfRow[e * all + j] !== slot)
          fail(`rank ${m}: row ${j} of expert ${e} is slot ${slotOfRow[e * all + j]}, not ${slot}`)
        for (let k = 0; k < topK; k++)
          if (ids[slot * topK + k] === e && rowOfSlot[slot * topK + k] !== e * all + j)
            fail(`rank ${m}: slot ${slot}, choice ${k} points to row ${rowOfSlot[slot * topK + k]}`)
      })
    }
  })
}

/** Low-latency combine, reduce 'sender', of any expert rows `y` in bf16: samples of tokens against sums of the very rows. */
export function checkBack(
  node: PeerNode,
  data: EpData,
  parity: number,
  y: readonly number[],
  out: readonly number[],
  step = 5,
): void {
  node.settle()
  const { config, region, size } = node.ranks[0]!.peer
  const { topK, hidden } = config
  const { slots } = region
  const row = new Uint16Array(hidden)
  const places = node.ranks.map(({ peer }) => peer.read('rowOfSlot', parity, size * slots * topK))
  const weights = node.ranks.map(
    ({ peer }) => new Float32Array(peer.read('slotWeights', parity, size * slots * topK).buffer),
  )
  node.ranks.forEach((rank, r) => {
    const table = rank.peer.read('slotTable', parity, data.tokens[r]! * size)
    for (let t = 0; t < data.tokens[r]!; t += step) {
      const sum = new Float32Array(hidden)
      node.ranks.forEach((other, m) => {
        const slot = table[t * size + m]!
        if (slot < 0) return
        const part = new Float32Array(hidden)
        for (let k = 0; k < topK; k++) {
          const at = (r * slots + slot) * topK + k
          if (places[m]![at]! < 0) continue
          other.get(row, y[m]! + places[m]![at]! * hidden * 2)
          for (let c = 0; c < hidden; c++) part[c] = part[c]! + weights[m]![at]! * fromBits(row[c]!)
        }
        for (let c = 0; c < hidden; c++) sum[c] = sum[c]! + roundBf16(part[c]!)
      })
      rank.get(row, out[r]! + t * hidden * 2)
      for (let c = 0; c < hidden; c++) {
        const found = fromBits(row[c]!)
        // Rounded once more or less where a fused product meets a tie.
        if (!(Math.abs(found - sum[c]!) <= Math.abs(sum[c]!) / 128 + 1e-6))
          fail(`low-latency combine on rank ${r}: token ${t}, column ${c} is ${found}, not ${sum[c]}`)
      }
    }
  })
}
