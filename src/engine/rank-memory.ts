// The memory a rank works in, lent by the node: the arena, inputs and outputs, the KV cache, rope tables.
import { type MemoryLender, type MemorySpan, subspan } from '../device/memory.js'
import { bufferBytes, type Program, planArena } from '../program/index.js'
import { fillRopeTable } from './rope-table.js'

export interface RankMemory {
  readonly buffers: Readonly<Record<string, MemorySpan>>
  readonly arenaBytes: number
  readonly kvBytes: number
}

export function lendRankMemory(program: Program, lender: MemoryLender): RankMemory {
  const plan = planArena(program)
  const arena = lender.lend(plan.bytes, 'arena')
  const buffers: Record<string, MemorySpan> = {}
  let kvBytes = 0
  for (const buffer of program.buffers) {
    const bytes = bufferBytes(program, buffer)
    const offset = plan.offsets[buffer.name]
    if (offset !== undefined) buffers[buffer.name] = subspan(arena, offset, bytes)
    else if (buffer.kind !== 'arena') buffers[buffer.name] = lender.lend(bytes, `${buffer.kind} ${buffer.name}`)
    if (buffer.kind === 'kv') kvBytes += bytes
  }
  return { buffers, arenaBytes: plan.bytes, kvBytes }
}

/** Shared by all ranks of the node. */
export const lendRopeTables = (program: Program, lender: MemoryLender): Record<string, MemorySpan> =>
  Object.fromEntries(program.ropeTables.map(t => [t.name, fillRopeTable(t, lender)]))
