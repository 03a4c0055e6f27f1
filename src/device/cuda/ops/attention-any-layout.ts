// Attention of any widths: which kernel takes a shape, what is compiled into it, and how many blocks there are. Pure. Sizes are those
// of kernels/cuda/attention_any_shape.cuh, which checks its own against them.
import type { ActivationDtype } from '../../ops.js'
import { elementBytes } from '../../ops.js'
import type { AttentionShape } from './attention-layout.js'
import { ceilDiv } from './operands.js'

const WARPS = 4
/** Keys that a block takes in a turn of its warps. */
export const ANY_TILE = 64
/** Tiles of a part at least, and parts of a row at most: more keys make longer parts. */
export const ANY_LEAST_TILES = 4
const MOST_PARTS = 64

/** Widest key and value of each kernel. */
const WIDEST_MMA = 256
const WIDEST_LANES = 1024
const MMA_HEADS = 16
/** Most heads that lanes keep, and floats of query and sums that one of them holds. */
const LANE_HEADS = 8
const LANE_FLOATS = 96
/** Floats of one head above which more lanes share a key. */
const HEAD_FLOATS = 32
/** The kernel's own shared memory, and what the driver takes of each block. */
const OTHER_SHARED_BYTES = 2048

export interface AnyShape extends AttentionShape {
  readonly type: ActivationDtype
  /** Elements of q and kv that may be read at once, and whether four of out may be written at once. */
  readonly access: 1 | 2 | 4 | 8
  readonly quads: boolean
}

/** A kernel with the macros of a shape. */
export interface AnyKernel {
  readonly file: string
  readonly name: string
  readonly defines: Readonly<Record<string, number | string>>
  /** Query heads of a block. */
  readonly heads: number
  /** Blocks along y. */
  readonly pieces: number
  readonly sharedBytes: number
  readonly partBytes: number
}

export interface SharedMemory {
  readonly sharedBytesPerBlock: number
  readonly sharedBytesPerSm: number
}

const roundUp = (n: number, to: number): number => ceilDiv(n, to) * to

/** @returns undefined for shapes of the plain kernel */
export function anyKernel(s: AnyShape, memory: SharedMemory): AnyKernel | undefined {
  const widest = Math.max(s.qkWidth, s.vWidth)
  if (s.heads % s.kvHeads !== 0 || widest > WIDEST_LANES) return undefined
  return (s.type === 'bf16' && widest <= WIDEST_MMA ? mmaKernel(s, memory) : undefined) ?? lanesKernel(s)
}

/** As many heads a block as `most` allows, alike in all blocks but the last. */
const headsOfBlock = (groupHeads: number, most: number): number => ceilDiv(groupHeads, ceilDiv(groupHeads, most))

function mmaKernel(s: AnyShape, memory: SharedMemory): AnyKernel | undefined {
  const heads = headsOfBlock(s.heads / s.kvHeads, MMA_HEADS)
  const rowBytes = (width: number): number => (2 * ceilDiv(width, 16) + 1) * 16
  const stageBytes = 16 * (rowBytes(s.qkWidth) + (isInside(s) ? 0 : rowBytes(s.vWidth)))
  const bytesOf = (stages: number): number => sharedBytes(heads, s.vWidth, WARPS * stages * stageBytes)
  // A third stage where two blocks still fit an SM.
  const stages = 2 * (bytesOf(3) + OTHER_SHARED_BYTES) <= memory.sharedBytesPerSm ? 3 : 2
  if (bytesOf(stages) + OTHER_SHARED_BYTES > memory.sharedBytesPerBlock) return undefined
  return described(s, 'attention_any_mma', heads, bytesOf(stages), { ANY_STAGES: stages })
}

function lanesKernel(s: AnyShape): AnyKernel {
  const chunk = 16 / elementBytes(s.type)
  const floats = (lanes: number): number =>
    chunk * (ceilDiv(ceilDiv(s.qkWidth, chunk), lanes) + ceilDiv(ceilDiv(s.vWidth, chunk), lanes))
  const lanes = [8, 16].find(l => floats(l) <= HEAD_FLOATS) ?? 32
  const most = Math.max(1, Math.min(LANE_HEADS, Math.floor(LANE_FLOATS / floats(lanes))))
  const heads = headsOfBlock(s.heads / s.kvHeads, most)
  return described(s, 'attention_any_lanes', heads, sharedBytes(heads, s.vWidth, 0), {
    ANY_LANES: lanes,
    ANY_ELEMENT: s.type === 'bf16' ? 'att::bf16_bits' : 'float',
  })
}

function described(s: AnyShape, name: string, heads: number, bytes: number, more: AnyKernel['defines']): AnyKernel {
  const partBytes = 4 * (heads * roundUp(s.vWidth, 16) + roundUp(2 * heads, 4))
  return {
    file: `${name}.cu`,
    name,
    defines: {
      ...{ ANY_KEY: s.qkWidth, ANY_VALUE: s.vWidth, ANY_HEADS: heads, ANY_INSIDE: isInside(s) ? 1 : 0 },
      ...{ ANY_ACCESS: s.access, ANY_STORE: s.quads ? 4 : 1, ANY_SHARED_BYTES: bytes, ANY_PART_BYTES: partBytes },
      ...more,
    },
    heads,
    pieces: s.kvHeads * ceilDiv(s.heads / s.kvHeads, heads),
    sharedBytes: bytes,
    partBytes,
  }
}

/** The value is the beginning of the key. */
export const isInside = (s: AttentionShape): boolean =>
  s.kvHeads === 1 && s.keyOffset === s.valueOffset && s.vWidth <= s.qkWidth

/** Memory<WALK_BYTES>::BYTES of attention_any_shape.cuh. */
function sharedBytes(heads: number, vWidth: number, walkBytes: number): number {
  const columns = roundUp(vWidth, 16)
  const mergeFloats = Math.max(WARPS * heads * (columns + 10), 2 * MOST_PARTS * heads)
  return roundUp(Math.max(walkBytes, 4 * mergeFloats), 16) + 4 * (heads * columns + 4 * heads)
}

/** Parts of a row that sees so many positions. */
export function anyParts(visible: number): number {
  const tiles = ceilDiv(visible, ANY_TILE)
  return ceilDiv(tiles, Math.max(ANY_LEAST_TILES, ceilDiv(tiles, MOST_PARTS)))
}

/**
 * Blocks along z. Results do not depend on it: blocks take the parts of a row in turn. Until the GPU is full once; beyond that one block takes
 * all parts of a row, unless rows may be so long that a single one would keep a block busy while the others are done.
 * @param slots blocks that the GPU holds at a time
 * @param parts most parts of a row
 * @param room parts of each row that there is memory for
 */
export function anyBlocks(pairs: number, slots: number, parts: number, room: number): number {
  if (room < parts) return 1
  return Math.min(parts, Math.max(Math.floor(slots / pairs), parts > 8 ? 4 : 1))
}
