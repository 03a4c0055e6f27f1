// What an ExpertBuffer is built for, equal on all ranks of its group and fixed for its life, and how many bytes that takes:
// the formula that lending uses is the one that `explain` shows. Pure data and arithmetic; lends nothing.
import { alignUp } from '../device/memory.js'
import { ExpertBufferError } from './errors.js'
import { WIRE_DTYPES, type WireDtype, type WireFormat, wireFormat } from './wire/format.js'

/** Rows pass through rings of `ringTokens` slots per (channel, source), in chunks, against credits. */
export interface RingConfig {
  /** A rank's tokens are cut into this many contiguous ranges, each with its own rings. */
  readonly channels: number
  /** Rows that are published together (nvl_chunk_send); at most ringTokens, half of it to send and receive at once. */
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

/** Most operations of one rank that its peers have not waited for yet; see shm/ep/signals.ts. */
export const ANNOUNCEMENTS = 16
export const ANNOUNCEMENT_WORDS = 16

/** What a piece of memory is for; names of the implementation's spans. */
export type EpPart =
  | 'signals'
  | 'rowMeta'
  | 'rings'
  | 'credits'
  | 'received'
  | 'decoded'
  | 'partials'
  | 'encodedPartials'
  | 'encodedTokens'
  | 'slots'
  | 'slotMeta'
  | 'decodedSlots'
  | 'slotOfRow'
  | 'combineSlots'
  | 'encodedSlots'

export interface EpBytes {
  readonly part: EpPart
  readonly what: string
  readonly bytes: number
  /** Pieces of equal size in it: one for each result that may be alive. */
  readonly copies: number
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

export const ringOf = (normal: NormalConfig): RingConfig | null => (normal.transit === 'direct' ? null : normal.transit)

/**
 * Sources that have rings at a member of `size`: all others, and itself only where its own partial rows are rounded as all
 * others are, on their way through a ring.
 */
export const ringSources = (normal: NormalConfig, size: number): number =>
  normal.combineWire === 'f32' ? Math.max(1, size - 1) : size

export const channelsOf = (config: ExpertBufferConfig): number =>
  (config.normal && ringOf(config.normal)?.channels) ?? 1

/** Bytes of one row's ids, weights and source token. */
const metaBytes = (topK: number): number => 4 * (2 * topK + 1)

/**
 * Memory of one member, part by part. The node lends the sum over members.
 * @throws ExpertBufferError SY_EP_BAD_CONFIG
 */
export function expertBufferBytes(config: ExpertBufferConfig, member: number): readonly EpBytes[] {
  checkConfig(config)
  const { hidden, topK, normal: n, lowLatency: l } = config
  const size = config.expertsOfMember.length
  const results = config.results ?? 2
  const plain = (config.deliver ?? 'f32') === 'f32'
  const f32Row = wireFormat('f32', hidden).rowBytes
  const meta = metaBytes(topK)
  const parts: EpBytes[] = []
  const add = (part: EpPart, what: string, copies: number, each: number, formula: string, peers: boolean) => {
    const times = copies > 1 ? `${copies} results × ` : ''
    parts.push({ part, what, bytes: copies * alignUp(each), copies, formula: times + formula, peers })
  }
  const counts = size * channelsOf(config) + totalExperts(config)
  const signals = 64 + 4 * ANNOUNCEMENTS * ANNOUNCEMENT_WORDS + 2 * results * alignUp(4 * counts)
  add(
    'signals',
    'signals and counts',
    1,
    signals,
    `64 + 16 announcements × 64 + 2 modes × ${results} results × counts`,
    true,
  )
  if (n) {
    const rows = maxReceived(config, n)
    const inWire = wireOf(config, n.dispatchWire)
    const outWire = wireOf(config, n.combineWire)
    const ring = ringOf(n)
    const received = `${rows} rows`
    add(
      'rowMeta',
      'ids, weights and sources of received rows',
      results,
      rows * meta,
      `${received} × 4 × (2 × top-k + 1)`,
      true,
    )
    if (!ring || !plain || n.dispatchWire === 'f32')
      add('received', 'received rows', results, rows * inWire.rowBytes, `${received} × ${inWire.rowBytes}`, !ring)
    if (plain && n.dispatchWire !== 'f32')
      add('decoded', 'received rows, decoded', results, rows * f32Row, `${received} × ${f32Row}`, false)
    const read = !ring && n.combineWire === 'f32'
    add('partials', 'partial rows', results, rows * f32Row, `${received} × ${f32Row}`, read)
    if (!ring && n.combineWire !== 'f32') {
      const each = outWire.rowBytes
      add('encodedPartials', 'partial rows, encoded', results, rows * each, `${received} × ${each}`, true)
    }
    if (n.dispatchWire !== 'f32') {
      const each = inWire.rowBytes
      add('encodedTokens', 'own tokens, encoded', 1, n.maxTokens * each, `${n.maxTokens} tokens × ${each}`, false)
    }
    if (ring) {
      const lanes = size * ring.channels
      const each = Math.max(inWire.rowBytes, outWire.rowBytes)
      const sources = ringSources(n, size)
      const slots = `${sources} members × ${ring.channels} channels × ${ring.ringTokens} slots × ${each}`
      add('rings', 'transit rings', 1, sources * ring.channels * ring.ringTokens * each, slots, true)
      const words = `(2 × ${size} members × ${ring.channels} channels + 1) × 64`
      add('credits', 'heads, tails and a bell', 1, (2 * lanes + 1) * 64, words, true)
    }
  }
  if (l) {
    const inWire = wireOf(config, l.dispatchWire)
    const outWire = wireOf(config, l.combineWire)
    const slots = size * l.slots
    const all = `${size} members × ${l.slots} slots`
    add('slots', 'low-latency slots', results, slots * inWire.rowBytes, `${all} × ${inWire.rowBytes}`, true)
    add('slotMeta', 'ids, weights and sources of slots', results, slots * meta, `${all} × 4 × (2 × top-k + 1)`, true)
    if (plain && l.dispatchWire !== 'f32')
      add('decodedSlots', 'slots, decoded', results, slots * f32Row, `${all} × ${f32Row}`, false)
    const local = config.expertsOfMember[member]!
    add('slotOfRow', 'rows of experts', results, 4 * local * slots, `${local} local experts × ${all} × 4`, false)
    const back = l.reduce === 'sender' ? size : topK
    const name = l.reduce === 'sender' ? 'members' : 'top-k'
    const combine = `${back} ${name} × ${l.slots} slots × ${outWire.rowBytes}`
    add('combineSlots', 'slots of combine', results, back * l.slots * outWire.rowBytes, combine, true)
    if (l.dispatchWire !== 'f32') {
      const each = inWire.rowBytes
      add('encodedSlots', 'own tokens, encoded', 1, l.slots * each, `${l.slots} slots × ${each}`, false)
    }
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
      need(positive(ringTokens) && chunkTokens <= ringTokens, 'ring tokens', ringTokens, 'at least one chunk')
    }
  }
  if (l) need(positive(l.slots), 'lowLatency.slots', l.slots, 'at least 1')
}
