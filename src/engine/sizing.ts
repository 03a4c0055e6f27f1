// How much memory a rank's program takes and how many tokens its KV pool gets. Pure arithmetic over flags and sizes, so
// that `explain` can answer before anything is allocated.
import type { EngineFlags } from '../config/flags.js'
import type { ModelSpec } from '../formats/model-spec.js'
import { gqaKvColumns, mlaKvColumns } from '../layers/index.js'
import type { ProgramLimits } from '../models/index.js'
import type { ParallelSizes } from '../parallel/index.js'
import { EngineError } from './errors.js'

const GIB = 1073741824

export const showBytes = (bytes: number): string =>
  bytes >= GIB ? `${(bytes / GIB).toFixed(1)} GiB` : `${(bytes / 1048576).toFixed(1)} MiB`

/** Bytes one token takes in the caches of all layers of one rank. @param elementBytes 4, or 2 where activations are bf16 */
export function kvBytesPerToken(spec: ModelSpec, attnTp: number, elementBytes: number): number {
  const columns = spec.layers.map(({ attention }) =>
    attention.kind === 'mla' ? mlaKvColumns(attention) : gqaKvColumns(attention, attnTp),
  )
  return elementBytes * columns.reduce((a, b) => a + b, 0)
}

/** The same in all pools of one memory. */
const poolBytesPerToken = (spec: ModelSpec, sizes: ParallelSizes, { elementBytes, pools }: MemorySituation): number =>
  kvBytesPerToken(spec, sizes.attnTp, elementBytes) * (pools ?? sizes.tp)

export interface MemorySituation {
  /** Bytes free for the KV pool and everything after it. */
  readonly free: number
  readonly total: number
  /** Bytes the weights take. */
  readonly weights: number
  /** Bytes of an element of the KV cache. */
  readonly elementBytes: number
  /** KV caches that lie in this memory. Left out: those of all ranks. */
  readonly pools?: number
  /** Memory of a device of its own: then weights and KV cache take this share of it by default, and others' use counts. */
  readonly fractionStatic?: number
  /** Of such a device: bytes of the arenas, which steps need whatever the share is. */
  readonly arenas?: number
}

const SMALLER_STEPS = 'Use a smaller --chunked-prefill-size or --max-running-requests, or free memory.'

const freeForKv = ({ free, arenas = 0 }: MemorySituation): number => free - arenas

/** Bytes that the KV cache may take. */
function kvAllowance({ memFractionStatic }: EngineFlags, memory: MemorySituation): number {
  const { free, total, weights, fractionStatic } = memory
  if (fractionStatic !== undefined) {
    const taken = total - free
    return Math.min(total * (memFractionStatic ?? fractionStatic) - taken, freeForKv(memory))
  }
  return memFractionStatic === null ? free / 4 : total * memFractionStatic - weights
}

/** Tokens of one rank's KV pool: what was asked for, else what the running requests can need within the memory's limit. */
function kvPoolTokens(
  flags: EngineFlags,
  spec: ModelSpec,
  sizes: ParallelSizes,
  contextLength: number,
  memory: MemorySituation,
): number {
  const bytesPerToken = poolBytesPerToken(spec, sizes, memory)
  const allowed = kvAllowance(flags, memory)
  const pages = (tokens: number) => Math.ceil(tokens / flags.pageSize) * flags.pageSize
  const affordable = Math.floor(allowed / bytesPerToken / flags.pageSize) * flags.pageSize
  if (flags.maxTotalTokens !== null) {
    const wanted = pages(flags.maxTotalTokens)
    const free = freeForKv(memory)
    if (wanted * bytesPerToken <= free) return wanted
    throw new EngineError('SY_ENGINE_NOT_ENOUGH_MEMORY', {
      what: `a KV cache of ${flags.maxTotalTokens} tokens`,
      needed: showBytes(wanted * bytesPerToken),
      available: showBytes(Math.max(0, free)),
      remedy:
        free >= bytesPerToken * flags.pageSize
          ? `Use --max-total-tokens ${Math.floor(free / bytesPerToken / flags.pageSize) * flags.pageSize} or less.`
          : SMALLER_STEPS,
    })
  }
  if (affordable < flags.pageSize) {
    throw new EngineError('SY_ENGINE_NOT_ENOUGH_MEMORY', {
      what: 'one page of the KV cache',
      needed: showBytes(flags.pageSize * bytesPerToken),
      available: showBytes(Math.max(0, allowed)),
      remedy:
        memory.arenas && freeForKv(memory) < flags.pageSize * bytesPerToken
          ? SMALLER_STEPS
          : 'Raise --mem-fraction-static, or free memory.',
    })
  }
  return Math.min(flags.maxRunningRequests * pages(contextLength), affordable)
}

/** The model's context length, or the shorter one that was asked for. */
function contextLengthOf(flags: EngineFlags, spec: ModelSpec): number {
  const asked = flags.contextLength ?? spec.maxPositions
  if (asked > spec.maxPositions) {
    throw new EngineError('SY_ENGINE_CONTEXT_TOO_LONG', { asked, limit: spec.maxPositions })
  }
  return asked
}

/** Tokens of a step, over all requests of a DP rank: a chunk of prompts and one of each running request. */
export const tokensOfStep = ({ chunkedPrefillSize, maxRunningRequests }: EngineFlags): number =>
  chunkedPrefillSize + maxRunningRequests

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
    tokens: tokensOfStep(flags),
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
