// The memory of an expert buffer on one node: for each member the parts that expertBufferBytes lists, lent before ranks start.
// Plain data that can be posted to workers. Views are made by each rank for itself (views.ts).
import type { MemoryLender, MemorySpan } from '../../../device/memory.js'
import { subspan } from '../../../device/memory.js'
import { type EpPart, type ExpertBufferConfig, expertBufferBytes } from '../../expert-buffer-config.js'

export interface LentPart {
  readonly span: MemorySpan
  /** Pieces of equal size in it, one for each result. */
  readonly copies: number
}

export type MemberMemory = Readonly<Partial<Record<EpPart, LentPart>>>

export interface ExpertBufferMemory {
  readonly config: ExpertBufferConfig
  /** Global rank of each member. */
  readonly ranks: readonly number[]
  /** Name of the group for messages: "moe_ep". */
  readonly group: string
  readonly members: readonly MemberMemory[]
}

/** @throws ExpertBufferError SY_EP_BAD_CONFIG */
export function lendExpertBuffer(
  lender: MemoryLender,
  config: ExpertBufferConfig,
  ranks: readonly number[] = config.expertsOfMember.map((_, m) => m),
  group = 'moe_ep',
): ExpertBufferMemory {
  const members = ranks.map((rank, member): MemberMemory => {
    const lent: Partial<Record<EpPart, LentPart>> = {}
    for (const { part, bytes, copies } of expertBufferBytes(config, member))
      lent[part] = { span: lender.lend(bytes, `expert buffer ${group}, rank ${rank}: ${part}`), copies }
    return lent
  })
  return { config, ranks, group, members }
}

/** The piece of a part that belongs to result `parity`, or undefined when the config has no such part. */
export function piece(memory: MemberMemory, part: EpPart, parity = 0): MemorySpan | undefined {
  const lent = memory[part]
  if (!lent) return undefined
  const bytes = lent.span.byteLength / lent.copies
  return subspan(lent.span, parity * bytes, bytes)
}
