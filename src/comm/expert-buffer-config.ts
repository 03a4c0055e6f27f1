// What an ExpertBuffer is built for, equal on all ranks of its group and fixed for its life, and how many bytes that takes:
// the formula that lending uses is the one that `explain` shows. Pure data and arithmetic; lends nothing.
import { alignUp } from '../device/memory.js'
import { ExpertBufferError } from './errors.js'
import { WIRE_DTYPES, type WireDtype, type WireFormat, wireFormat } from './wire/format.js'

/** Rows pass through rings of `ringTokens` slots per (channel, source), in chunks, against credits. */
export interface RingConfig {
  /** A rank's tokens are cut into this many contiguous ranges, each with its own rings. */
  readonly channels: number
  /** Rows that are published together (nvl_chunk_send); at most half of ringTokens. */
  readonly chunkTokens: number
  /** Slots of a ring (nvl_chunk_recv). */
  readonly ringTokens: number
}

export interface NormalConfig {
  /** Tokens a rank brings at most. */
  readonly maxTokens: number
  /** Rows a rank receives at most. Default: members × maxTokens, which is always enough. */
  readonly maxReceived?: number
  readonly dispatchWire: WireDtype
  readonly combineWire: WireDtype
  /** `direct`: counts are known, so every row is written where it is read. A ring moves rows twice, in less peer memory. */
  readonly transit: 'direct' | RingConfig
}

export interface LowLatencyConfig {
  /** Tokens a rank brings at most: --deepep-num-max-dispatch-tokens-per-rank. */
  readonly slots: number
  readonly dispatchWire: WireDtype
  readonly combineWire: WireDtype
  readonly reduce: 'sender' | 'origin'
}

export interface ExpertBufferConfig {
  readonly hidden: number
  /** 1 to 32. */
  readonly topK: number
  /** Physical experts (replicas count) of each member, ids consecutive: member m holds Σ before m … */
  readonly expertsOfMember: readonly number[]
  /** Node of each member. Default: all on one. */
  readonly nodeOfMember?: readonly number[]
  /** fp8 scales are rounded up to powers of two. */
  readonly roundScales?: boolean
  /** What a dispatch hands out: rows decoded to f32 (default), or as they travelled. */
  readonly deliver?: 'f32' | 'wire'
  /** Results alive at once, in each mode. Default 2: two batches overlap. */
  readonly results?: 1 | 2
  readonly normal?: NormalConfig
  readonly lowLatency?: LowLatencyConfig
}

export const MAX_TOP_K = 32

/** Header words of one result of one member; see shm/ep/signals.ts. */
export const EP_HEADER_WORDS = 32

export interface EpBytes {
  /** What the memory is for. */
  readonly part: string
  readonly bytes: number
  /** The arithmetic, in the config's own words. */
  readonly formula: string
  /** Whether peers address it (only then it must be lent by the node). */
  readonly peers: boolean
}

export const totalExperts = (config: ExpertBufferConfig): number => config.expertsOfMember.reduce((a, b) => a + b, 0)

export const wireOf = (config: ExpertBufferConfig, dtype: WireDtype): WireFormat =>
  wireFormat(dtype, config.hidden, config.roundScales ?? false)

export const maxReceived = (config: ExpertBufferConfig, normal: NormalConfig): number =>
  normal.maxReceived ?? config.expertsOfMember.length * normal.maxTokens

/** Bytes of one row's ids, weights and source token, padded to cache lines. */
export const metaBytes = (topK: number): number => alignUp(4 * (2 * topK + 1))

/**
 * Memory of one member, part by part. Sum over parts × members is what the node lends for a group.
 * @throws ExpertBufferError SY_EP_BAD_CONFIG
 */
export function expertBufferBytes(config: ExpertBufferConfig, member: number): readonly EpBytes[] {
  checkConfig(config)
  const size = config.expertsOfMember.length
  const results = config.results ?? 2
  const parts: EpBytes[] = []
  const add = (part: string, bytes: number, formula: string, peers = true) => {
    if (bytes > 0) parts.push({ part, bytes: alignUp(bytes), formula, peers })
  }
  const words = EP_HEADER_WORDS + size + totalExperts(config)
  add('signals', results * 2 * alignUp(4 * words), 'results × modes × 4 × (header + members + experts)')
  const f32 = 4 * config.hidden
  const { normal: n, lowLatency: l } = config
  const plain = (config.deliver ?? 'f32') === 'f32'
  if (n) {
    const rows = maxReceived(config, n)
    const inWire = wireOf(config, n.dispatchWire)
    const outWire = wireOf(config, n.combineWire)
    const ring = n.transit === 'direct' ? null : n.transit
    const ringBytes = ring ? size * ring.channels * ring.ringTokens : 0
    add(
      'normal rows’ ids, weights, sources',
      results * rows * metaBytes(config.topK),
      'results × max received × meta row',
    )
    if (ring) {
      add(
        'rings',
        ringBytes * Math.max(inWire.rowBytes, outWire.rowBytes),
        'members × channels × ring slots × wire row',
      )
      add('credits', 2 * size * ring.channels * 64, '2 × members × channels × 64')
    }
    if (!ring || !plain)
      add('received rows', results * rows * inWire.rowBytes, 'results × max received × wire row', !ring)
    if (plain && (ring || n.dispatchWire !== 'f32'))
      add('decoded rows', results * rows * f32, 'results × max received × 4 × hidden', false)
    add('partial rows', results * rows * f32, 'results × max received × 4 × hidden', !ring && n.combineWire === 'f32')
    if (!ring && n.combineWire !== 'f32')
      add('encoded partial rows', results * rows * outWire.rowBytes, 'results × max received × wire row')
    if (n.dispatchWire !== 'f32') add('encoded tokens', n.maxTokens * inWire.rowBytes, 'max tokens × wire row', false)
  }
  if (l) {
    const inWire = wireOf(config, l.dispatchWire)
    const outWire = wireOf(config, l.combineWire)
    const slots = size * l.slots
    const local = config.expertsOfMember[member]!
    const back = l.reduce === 'sender' ? size : config.topK
    add('slots', results * slots * inWire.rowBytes, 'results × members × slots × wire row')
    add(
      'slots’ ids, weights, sources',
      results * slots * metaBytes(config.topK),
      'results × members × slots × meta row',
    )
    if (plain && l.dispatchWire !== 'f32')
      add('decoded slots', results * slots * f32, 'results × members × slots × 4 × hidden', false)
    add('rows of experts', results * 4 * local * slots, 'results × local experts × members × slots × 4', false)
    add(
      'combine slots',
      results * back * l.slots * outWire.rowBytes,
      `results × ${l.reduce === 'sender' ? 'members' : 'top-k'} × slots × wire row`,
    )
    if (l.dispatchWire !== 'f32') add('encoded slots', l.slots * inWire.rowBytes, 'slots × wire row', false)
  }
  return parts
}

/** @throws ExpertBufferError SY_EP_BAD_CONFIG */
export function checkConfig(config: ExpertBufferConfig): void {
  const { hidden, topK, expertsOfMember, nodeOfMember, normal: n, lowLatency: l } = config
  const positive = (v: number) => Number.isInteger(v) && v >= 1
  const need = (holds: boolean, what: string, value: unknown, rule: string) => {
    if (!holds) throw new ExpertBufferError('SY_EP_BAD_CONFIG', { what, value, rule })
  }
  need(positive(hidden), 'hidden', hidden, 'at least 1')
  need(positive(topK) && topK <= MAX_TOP_K, 'topK', topK, `1 to ${MAX_TOP_K}`)
  need(expertsOfMember.length > 0, 'expertsOfMember', expertsOfMember, 'one count a member')
  need(
    expertsOfMember.every(e => Number.isInteger(e) && e >= 0) && totalExperts(config) > 0,
    'expertsOfMember',
    expertsOfMember,
    'whole numbers from 0, not all 0',
  )
  need(
    !nodeOfMember || nodeOfMember.length === expertsOfMember.length,
    'nodeOfMember',
    nodeOfMember,
    'one node a member',
  )
  need(n !== undefined || l !== undefined, 'normal and lowLatency', 'nothing', 'at least one mode')
  for (const [what, dtype] of Object.entries({
    n: n?.dispatchWire,
    nc: n?.combineWire,
    l: l?.dispatchWire,
    lc: l?.combineWire,
  }))
    need(dtype === undefined || WIRE_DTYPES.includes(dtype), `wire dtype ${what}`, dtype, WIRE_DTYPES.join('|'))
  if (n) {
    need(positive(n.maxTokens), 'normal.maxTokens', n.maxTokens, 'at least 1')
    need(n.maxReceived === undefined || positive(n.maxReceived), 'normal.maxReceived', n.maxReceived, 'at least 1')
    if (n.transit !== 'direct') {
      const { channels, chunkTokens, ringTokens } = n.transit
      need(positive(channels) && channels <= 64, 'channels', channels, '1 to 64')
      need(positive(chunkTokens), 'chunk tokens', chunkTokens, 'at least 1')
      need(positive(ringTokens) && chunkTokens * 2 <= ringTokens, 'ring tokens', ringTokens, 'at least two chunks')
    }
  }
  if (l) need(positive(l.slots), 'lowLatency.slots', l.slots, 'at least 1')
}
