// The memory of one group's collectives on shared memory: for each member two halves (parities) of a header and a
// payload, lent by the node. A member writes only its own halves; the others read them.
import { alignUp, hostBuffer, type MemoryLender, type MemorySpan, subspan } from '../../device/memory.js'

/** Header words: what a member publishes about the collective that it has arrived at. */
export const HEADER_FIELDS = ['step', 'sequence', 'collective', 'layer', 'operation', 'width', 'rows', 'root'] as const
export const HEADER_BYTES = 64

export interface ExchangeMemory {
  /** Payload bytes of one half. */
  readonly payloadBytes: number
  /** One span a member. */
  readonly members: readonly MemorySpan[]
}

/** @param payloadBytes the largest contribution of one member to any collective of the group. */
export function lendExchange(lender: MemoryLender, group: string, size: number, payloadBytes: number): ExchangeMemory {
  const half = HEADER_BYTES + alignUp(payloadBytes)
  const members = Array.from({ length: size }, (_, m) => lender.lend(2 * half, `exchange ${group} member ${m}`))
  return { payloadBytes: half - HEADER_BYTES, members }
}

/** One half, as views. */
export interface ExchangeHalf {
  readonly header: Int32Array
  /** All of the header: behind the published fields lies what only the member itself reads (windows.ts). */
  readonly headerSpan: MemorySpan
  readonly words: Int32Array
  readonly floats: Float32Array
  readonly payload: MemorySpan
}

export function halves(memory: ExchangeMemory, member: number): readonly [ExchangeHalf, ExchangeHalf] {
  const span = memory.members[member]!
  const bytes = HEADER_BYTES + memory.payloadBytes
  const half = (parity: number): ExchangeHalf => {
    const s = subspan(span, parity * bytes, bytes)
    return {
      header: new Int32Array(hostBuffer(s), s.byteOffset, HEADER_FIELDS.length),
      words: new Int32Array(hostBuffer(s), s.byteOffset + HEADER_BYTES, memory.payloadBytes >>> 2),
      headerSpan: subspan(s, 0, HEADER_BYTES),
      payload: subspan(s, HEADER_BYTES, memory.payloadBytes),
      floats: new Float32Array(hostBuffer(s), s.byteOffset + HEADER_BYTES, memory.payloadBytes >>> 2),
    }
  }
  return [half(0), half(1)]
}
