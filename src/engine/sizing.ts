// How much memory a rank's program takes and how many tokens its KV pool gets. Pure arithmetic over flags and sizes, so
// that `explain` can answer before anything is allocated.
import { totalmem } from 'node:os'
import type { EngineFlags } from '../config/flags.js'
import type { ModelSpec } from '../formats/model-spec.js'
import { gqaKvColumns, mlaKvColumns } from '../layers/index.js'
import type { ProgramLimits } from '../models/index.js'
import type { ParallelSizes } from '../parallel/index.js'
import { EngineError } from './errors.js'

const GIB = 1073741824

export const showBytes = (bytes: number): string =>
  bytes >= GIB ? `${(bytes / GIB).toFixed(1)} GiB` : `${(bytes / 1048576).toFixed(1)} MiB`

/** Bytes one token takes in the caches of all layers of one rank (f32). */
export function kvBytesPerToken(spec: ModelSpec, attnTp: number): number {
  const columns = spec.layers.map(({ attention }) =>
    attention.kind === 'mla' ? mlaKvColumns(attention) : gqaKvColumns(attention, attnTp),
  )
  return 4 * columns.reduce((a, b) => a + b, 0)
}

/** The same in the pools of all ranks, which all live in this machine's memory. */
const poolBytesPerToken = (spec: ModelSpec, sizes: ParallelSizes): number =>
  kvBytesPerToken(spec, sizes.attnTp) * sizes.tp

export interface MemorySituation {
  /** Bytes free for the KV pool and everything after it. */
  readonly free: number
  readonly total: number
  /** Bytes the weights take. */
  readonly weights: number
}

/** Tokens of one rank's KV pool: what was asked for, else what the running requests can need within the memory's limit. */
export function kvPoolTokens(
  flags: EngineFlags,
  spec: ModelSpec,
  sizes: ParallelSizes,
  contextLength: number,
  memory: MemorySituation,
): number {
  const bytesPerToken = poolBytesPerToken(spec, sizes)
  const allowed =
    flags.memFractionStatic === null ? memory.free / 4 : memory.total * flags.memFractionStatic - memory.weights
  const pages = (tokens: number) => Math.ceil(tokens / flags.pageSize) * flags.pageSize
  const affordable = Math.floor(allowed / bytesPerToken / flags.pageSize) * flags.pageSize
  if (flags.maxTotalTokens !== null) {
    const wanted = pages(flags.maxTotalTokens)
    if (wanted * bytesPerToken <= memory.free) return wanted
    throw new EngineError('SY_ENGINE_NOT_ENOUGH_MEMORY', {
      what: `a KV cache of ${flags.maxTotalTokens} tokens`,
      needed: showBytes(wanted * bytesPerToken),
      available: showBytes(memory.free),
      remedy: `Use --max-total-tokens ${Math.max(1, Math.floor(memory.free / bytesPerToken))} or less.`,
    })
  }
  if (affordable < flags.pageSize) {
    throw new EngineError('SY_ENGINE_NOT_ENOUGH_MEMORY', {
      what: 'one page of the KV cache',
      needed: showBytes(flags.pageSize * bytesPerToken),
      available: showBytes(Math.max(0, allowed)),
      remedy: 'Raise --mem-fraction-static, or free memory.',
    })
  }
  return Math.min(flags.maxRunningRequests * pages(contextLength), affordable)
}

/** The model's context length, or the shorter one that was asked for. */
export function contextLengthOf(flags: EngineFlags, spec: ModelSpec): number {
  const asked = flags.contextLength ?? spec.maxPositions
  if (asked > spec.maxPositions) {
    throw new EngineError('SY_ENGINE_CONTEXT_TOO_LONG', { asked, limit: spec.maxPositions })
  }
  return asked
}

export function programLimits(
  flags: EngineFlags,
  spec: ModelSpec,
  sizes: ParallelSizes,
  memory: MemorySituation,
): ProgramLimits {
  const contextLength = contextLengthOf(flags, spec)
  const kvSlots = kvPoolTokens(flags, spec, sizes, contextLength, memory)
  requireContextTables(flags, spec, sizes, contextLength, memory.free / 2)
  return {
    tokens: flags.chunkedPrefillSize + flags.maxRunningRequests,
    sequences: flags.maxRunningRequests,
    contextLength,
    pageSize: flags.pageSize,
    kvSlots,
  }
}

/** Rotary tables have a row for each position, page tables a word for each page of each running request. They may take `limit` bytes. */
function requireContextTables(
  flags: EngineFlags,
  spec: ModelSpec,
  sizes: ParallelSizes,
  contextLength: number,
  limit: number,
): void {
  const ropeWidth = Math.max(...spec.layers.map(l => l.attention.rope.width))
  const pageWords = (flags.maxRunningRequests * sizes.attnDp) / flags.pageSize
  const bytesPerPosition = 4 * (ropeWidth + pageWords)
  if (contextLength * bytesPerPosition <= limit) return
  throw new EngineError('SY_ENGINE_NOT_ENOUGH_MEMORY', {
    what: `a context of ${contextLength} tokens, even without KV cache,`,
    needed: showBytes(contextLength * bytesPerPosition),
    available: showBytes(Math.max(0, limit)),
    remedy: `Use --context-length ${Math.max(1, Math.floor(limit / bytesPerPosition))} or less.`,
  })
}

export const machineMemory = (): number => totalmem()
