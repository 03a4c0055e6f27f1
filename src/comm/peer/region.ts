// What a rank's exchange region holds, area by area, and the record by which kernels find the regions of all members. Pure
// arithmetic; kernels/cuda/ep.cuh has the same list (struct Group, enum Area, enum State).
import { alignUp } from '../../device/memory.js'
import { type ExpertBufferConfig, maxReceived, totalExperts, wireOf } from '../expert-buffer-config.js'
import { memberOfExpert } from '../layout.js'

/** Members that a warp's lanes can stand for. */
export const MAX_PEERS = 32

/** In the order of enum Area. */
export const AREAS = [
  'counts',
  'done',
  'ready',
  'ids',
  'weights',
  'tokens',
  'rowFlags',
  'rows',
  'partials',
  'table',
  'info',
  'places',
  'slots',
  'slotIds',
  'slotWeights',
  'slotTokens',
  'slotFlags',
  'slotCounts',
  'slotDone',
  'back',
  'backFlags',
  'slotTable',
  'slotInfo',
  'slotOfRow',
  'rowOfSlot',
  'slotWords',
  'barrier',
] as const
export type Area = (typeof AREAS)[number]

/** Words of `info`: struct Info. */
export const INFO = {
  received: 0,
  overflow: 1,
  expanded: 2,
  tiles: 3,
  sourceStart: 8,
  experts: 8 + MAX_PEERS + 1,
} as const
/** Words of the state: enum State. */
export const STATE = { epoch: 0, slotEpoch: 2, poison: 8, words: 16 } as const

const ALIGNMENT = 256

/** Parts of columns, each with a flag of its own, that a row of the low-latency combine may be cut into. */
export const MAX_BACK_PARTS = 4

export interface Region {
  readonly bytes: number
  /** Bytes from the region's start to each area, for both parities. */
  readonly at: Readonly<Record<Area, readonly [number, number]>>
  readonly stateAt: number
  readonly memberOfAt: number
  readonly rowBytes: number
  readonly partialBytes: number
  readonly slotBytes: number
  readonly backBytes: number
  /** Rows received at most. */
  readonly rows: number
  readonly maxTokens: number
  readonly slots: number
  /** u64 words of one source's counts. */
  readonly countStride: number
  readonly mostLocalExperts: number
}

/** Equal for all members: areas are sized for the member with the most experts. */
export function layOutRegion(config: ExpertBufferConfig): Region {
  const { expertsOfMember, topK, normal: n, lowLatency: l } = config
  const size = expertsOfMember.length
  const locals = Math.max(...expertsOfMember)
  const rows = n ? maxReceived(config, n) : 0
  const maxTokens = n?.maxTokens ?? 0
  const slots = l?.slots ?? 0
  const all = size * slots
  const rowBytes = n ? wireOf(config, n.dispatchWire).rowBytes : 0
  const partialBytes = n ? wireOf(config, n.combineWire).rowBytes : 0
  const slotBytes = l ? wireOf(config, l.dispatchWire).rowBytes : 0
  const backBytes = l ? wireOf(config, l.combineWire).rowBytes : 0
  const back = (l?.reduce === 'origin' ? topK : size) * slots
  const countStride = size + locals
  const bytes: Record<Area, number> = {
    counts: 8 * size * countStride,
    done: 4 * size,
    ready: 4 * size,
    ids: 4 * rows * topK,
    weights: 4 * rows * topK,
    tokens: 4 * rows,
    rowFlags: 4 * rows,
    rows: rows * rowBytes,
    partials: rows * partialBytes,
    table: 4 * maxTokens * size,
    info: 4 * (INFO.experts + 3 * locals),
    places: 4 * rows * topK,
    slots: all * slotBytes,
    slotIds: 4 * all * topK,
    slotWeights: 4 * all * topK,
    slotTokens: 4 * all,
    slotFlags: 4 * all,
    slotCounts: 8 * size,
    slotDone: 4 * size,
    back: back * backBytes,
    backFlags: 4 * back * MAX_BACK_PARTS,
    slotTable: 4 * slots * size,
    slotInfo: 4 * (size + locals + 2 * locals * size),
    slotOfRow: 4 * locals * all,
    rowOfSlot: 4 * all * topK,
    slotWords: 8 * all * (Math.ceil(topK / 2) + topK + 1),
    barrier: 4 * size,
  }
  let end = 0
  const take = (size: number): number => {
    const at = end
    end = alignUp(at + size, ALIGNMENT)
    return at
  }
  const results = config.results ?? 2
  const at = Object.fromEntries(
    AREAS.map(area => {
      const first = take(bytes[area])
      return [area, [first, results === 2 ? take(bytes[area]) : first] as const]
    }),
  ) as unknown as Region['at']
  const stateAt = take(4 * STATE.words)
  const memberOfAt = take(totalExperts(config))
  const sizes = { rowBytes, partialBytes, slotBytes, backBytes, rows, maxTokens, slots, countStride }
  return { bytes: end, at, stateAt, memberOfAt, ...sizes, mostLocalExperts: locals }
}

export interface GroupRecord {
  readonly config: ExpertBufferConfig
  readonly region: Region
  readonly member: number
  /** Where each member's region begins. */
  readonly bases: readonly number[]
  readonly active: readonly boolean[]
  readonly timeoutMs: number
  /** u32 [8] in host memory that the GPU reaches. */
  readonly fault: number
}

/** struct Group, as words of 8 bytes. */
export function groupRecord({ config, region, member, bases, active, timeoutMs, fault }: GroupRecord): BigInt64Array {
  const { expertsOfMember, topK } = config
  const size = expertsOfMember.length
  const padded = (values: readonly number[], length: number): number[] => [
    ...values,
    ...Array<number>(length - values.length).fill(0),
  ]
  const firstExpert = [0]
  for (const n of expertsOfMember) firstExpert.push(firstExpert.at(-1)! + n)
  const base = bases[member]!
  const words = [
    ...padded(bases, MAX_PEERS),
    ...padded(firstExpert, MAX_PEERS + 1),
    ...[size, member, topK, totalExperts(config), region.maxTokens, region.rows, region.slots, region.countStride],
    active.reduce((mask, lives, m) => mask + (lives ? 2 ** m : 0), 0),
    timeoutMs * 1e6,
    ...[fault, base + region.stateAt, base + region.memberOfAt],
    ...[region.rowBytes, region.partialBytes, region.slotBytes, region.backBytes],
    ...AREAS.flatMap(area => [...region.at[area]]),
  ]
  return BigInt64Array.from(words, BigInt)
}

/** u8 [experts]. */
export const memberTable = (config: ExpertBufferConfig): Uint8Array =>
  Uint8Array.from(memberOfExpert(config.expertsOfMember))
