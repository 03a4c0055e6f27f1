// The memory ranks work in, lent by the node: arenas, inputs and outputs, KV caches, rope tables, exchange memory.
import { lendExchange, type ShmGroup } from '../comm/index.js'
import { alignUp, type MemoryLender, type MemorySpan, subspan } from '../device/memory.js'
import type { ActivationDtype } from '../device/ops.js'
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
  activation: ActivationDtype,
): RankMemory {
  const plans = programs.map(p => planArena(p, activation))
  const arenaBytes = Math.max(...plans.map(p => p.bytes))
  const arena = lender.lend(arenaBytes, 'arena')
  const lasting: Record<string, MemorySpan> = {}
  let kvBytes = 0
  for (const buffer of programs[0]!.buffers) {
    if (buffer.kind === 'arena' || buffer.kind === 'exchange') continue
    const bytes = bufferBytes(programs[0]!, buffer, activation)
    const theirs = buffer.kind === 'input' ? inputs?.[buffer.name] : undefined
    lasting[buffer.name] = theirs ?? lender.lend(bytes, `${buffer.kind} ${buffer.name}`)
    if (buffer.kind === 'kv') kvBytes += bytes
  }
  const buffers = programs.map((program, i) => {
    const placed = { ...lasting }
    for (const buffer of program.buffers) {
      const offset = plans[i]!.offsets[buffer.name]
      if (offset !== undefined) placed[buffer.name] = subspan(arena, offset, bufferBytes(program, buffer, activation))
    }
    return placed
  })
  return { buffers, arenaBytes, kvBytes }
}

/** Shared by all ranks of the node. @param write puts bytes into lent memory */
export const lendRopeTables = (
  program: Program,
  lender: MemoryLender,
  write: (span: MemorySpan, bytes: Uint8Array) => void,
): Record<string, MemorySpan> =>
  Object.fromEntries(
    program.ropeTables.map(spec => {
      const table = new Float32Array(spec.positions * spec.width)
      fillRopeTable(spec, table)
      const span = lender.lend(table.byteLength, `rope table ${spec.name}`)
      write(span, new Uint8Array(table.buffer))
      return [spec.name, span]
    }),
  )

/** The inputs of a program side by side in one span, so that a device's copy of them can be brought up to date at once. */
export interface InputBlock {
  readonly span: MemorySpan
  /** Bytes from the beginning of the span. */
  readonly offsets: Readonly<Record<string, number>>
  /** By name, as a rank's buffers. */
  readonly buffers: Readonly<Record<string, MemorySpan>>
}

/** @param more further buffers by name, with their bytes */
export function lendInputBlock(
  program: Program,
  lender: MemoryLender,
  more: Readonly<Record<string, number>> = {},
): InputBlock {
  const sizes: Record<string, number> = { ...more }
  for (const b of program.buffers) if (b.kind === 'input') sizes[b.name] = bufferBytes(program, b)
  const offsets: Record<string, number> = {}
  let bytes = 0
  for (const [name, size] of Object.entries(sizes)) {
    offsets[name] = bytes
    bytes += alignUp(size, 256)
  }
  const span = lender.lend(bytes, 'inputs of a step')
  const buffers = Object.fromEntries(
    Object.entries(sizes).map(([name, size]) => [name, subspan(span, offsets[name]!, size)]),
  )
  return { span, offsets, buffers }
}

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
