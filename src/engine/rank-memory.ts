// The memory ranks work in, lent by the node: arenas, inputs and outputs, KV caches, rope tables, exchange memory.
import { lendExchange, type ShmGroup } from '../comm/index.js'
import { type MemoryLender, type MemorySpan, subspan } from '../device/memory.js'
import { groupOf, type RankCoordinates, type Topology } from '../parallel/index.js'
import { bufferBytes, collectivePayloads, type Program, type ProgramGroup, planArena } from '../program/index.js'
import { VOTE_WORDS } from '../scheduler/index.js'
import { fillRopeTable } from './rope-table.js'

export interface RankMemory {
  /** Memory of every buffer, for each of the rank's programs. Only arena buffers differ. */
  readonly buffers: readonly Readonly<Record<string, MemorySpan>>[]
  readonly arenaBytes: number
  readonly kvBytes: number
}

/**
 * @param inputs the input buffers of the rank that schedules for this one (attention-TP member 0), or null when it does
 * itself: members of a group read the local batch where their leader wrote it
 */
export function lendRankMemory(
  programs: readonly Program[],
  lender: MemoryLender,
  inputs: Readonly<Record<string, MemorySpan>> | null,
): RankMemory {
  const plans = programs.map(p => planArena(p))
  const arenaBytes = Math.max(...plans.map(p => p.bytes))
  const arena = lender.lend(arenaBytes, 'arena')
  const lasting: Record<string, MemorySpan> = {}
  let kvBytes = 0
  for (const buffer of programs[0]!.buffers) {
    if (buffer.kind === 'arena' || buffer.kind === 'exchange') continue
    const bytes = bufferBytes(programs[0]!, buffer)
    const theirs = buffer.kind === 'input' ? inputs?.[buffer.name] : undefined
    lasting[buffer.name] = theirs ?? lender.lend(bytes, `${buffer.kind} ${buffer.name}`)
    if (buffer.kind === 'kv') kvBytes += bytes
  }
  const buffers = programs.map((program, i) => {
    const placed = { ...lasting }
    for (const buffer of program.buffers) {
      const offset = plans[i]!.offsets[buffer.name]
      if (offset !== undefined) placed[buffer.name] = subspan(arena, offset, bufferBytes(program, buffer))
    }
    return placed
  })
  return { buffers, arenaBytes, kvBytes }
}

/** Shared by all ranks of the node. */
export const lendRopeTables = (program: Program, lender: MemoryLender): Record<string, MemorySpan> =>
  Object.fromEntries(program.ropeTables.map(t => [t.name, fillRopeTable(t, lender)]))

/** Epoch word of each kind of group in the control block: a rank is in one group of each kind. */
const GROUP_INDEX: Record<ProgramGroup, number> = { tp: 0, attnDp: 1, attnTp: 2 }

export type RankGroups = Readonly<Record<ProgramGroup, ShmGroup>>

/** The groups of every rank, with memory for their largest collective. Groups of one need none but the vote's. */
export function lendGroups(topology: Topology, programs: readonly Program[], lender: MemoryLender): RankGroups[] {
  const payloads = collectivePayloads(programs)
  const made = new Map<string, ShmGroup>()
  const group = (kind: ProgramGroup, ranks: readonly number[]): ShmGroup => {
    const key = `${kind}:${ranks.join(',')}`
    const known = made.get(key)
    if (known) return known
    const bytes = Math.max(payloads[kind], VOTE_WORDS * 4)
    const fresh = {
      name: kind,
      index: GROUP_INDEX[kind],
      ranks,
      memory: lendExchange(lender, kind, ranks.length, bytes),
    }
    made.set(key, fresh)
    return fresh
  }
  return topology.ranks.map(({ rank }: RankCoordinates) => ({
    tp: group('tp', groupOf(topology, 'world', rank)),
    attnDp: group('attnDp', groupOf(topology, 'attnDp', rank)),
    attnTp: group('attnTp', groupOf(topology, 'attnTp', rank)),
  }))
}
