// How attention on a GPU is cut into blocks: pure functions of what a bound operation knows. Context lengths are not among it; they
// are read on the device, so that a captured graph stays right while sequences grow.

/** Fewest M-rows (rows times query heads of a KV head) of a prefill block: a group of heads must fit. */
const PREFILL_ROWS = 128

/** Query heads on the M side of a decode block. */
const DECODE_HEADS = 16

/** More parts than this make their merging the longer half. */
const MOST_PARTS = 64

/** Rows and parts of a mixed step's single rows: later rows take turns, uncut. */
const MIXED_ITEMS = 64
const MIXED_PARTS = 4

/** What partial results may take. */
export const PARTIAL_BYTES = 64 << 20

/** Which kernels take an attention's shape: `grouped` heads of 64 or 128, `latent` the absorbed MLA of 512 + 64. */
export type AttentionFamily = 'grouped' | 'latent'

export interface AttentionShape {
  readonly heads: number
  readonly kvHeads: number
  readonly qkWidth: number
  readonly vWidth: number
  readonly keyOffset: number
  readonly valueOffset: number
}

/** @returns undefined for shapes of the plain kernel */
export function attentionFamily(s: AttentionShape): AttentionFamily | undefined {
  if (s.heads % s.kvHeads !== 0) return undefined
  if (s.qkWidth === s.vWidth && (s.qkWidth === 64 || s.qkWidth === 128)) {
    return s.heads / s.kvHeads <= PREFILL_ROWS ? 'grouped' : undefined
  }
  const inside = s.kvHeads === 1 && s.keyOffset === s.valueOffset
  return inside && s.qkWidth === 576 && s.vWidth === 512 ? 'latent' : undefined
}

/** Rows of one tile of a prompt, where a block takes `m` rows times query heads of a KV head. */
export const prefillTileRows = (m: number, groupHeads: number): number => Math.max(1, Math.floor(m / groupHeads))

/** Blocks along y of a decode launch: each takes up to 16 query heads of one KV head. */
export const decodePieces = (kvHeads: number, groupHeads: number): number =>
  kvHeads * Math.ceil(groupHeads / DECODE_HEADS)

/** Bytes of one part: sums, maxima and totals of `mRows` heads. */
export const partBytes = (mRows: number, vWidth: number): number => mRows * (vWidth + 2) * 4

export interface DecodeCut {
  /** Rows that have partial results; blocks along x. */
  readonly items: number
  /** Most parts of a row; blocks along z. */
  readonly splits: number
  /** A part has at least this many tiles of keys. */
  readonly minTiles: number
}

/** Parts of each of `pairs` pairs of row and piece that the memory of partial results holds, 1 at least: what is not cut needs none. */
export const partsRoom = (pairs: number, bytesAPart: number): number =>
  Math.max(1, Math.floor(PARTIAL_BYTES / (pairs * bytesAPart)))

/**
 * How single rows are cut. Few pairs of row and piece: parts until the GPU is full once. Enough pairs: only contexts above
 * 1,024 positions are cut, so that one long sequence does not keep a single block busy while the others are done.
 * @param slots blocks that the GPU holds at a time
 */
export function decodeCut(rows: number, pieces: number, slots: number, bytesAPart: number, mixed: boolean): DecodeCut {
  const items = mixed ? Math.min(rows, MIXED_ITEMS) : rows
  const pairs = items * pieces
  const room = partsRoom(pairs, bytesAPart)
  if (mixed) return { items, splits: Math.min(MIXED_PARTS, room), minTiles: 4 }
  if (pairs >= slots) return { items, splits: Math.min(MIXED_PARTS, room), minTiles: 16 }
  return { items, splits: Math.min(MOST_PARTS, room, Math.max(1, Math.floor(slots / pairs))), minTiles: 1 }
}

/** Blocks of a prefill launch. Any number is right; this is one a tile when the batch has up to 16 more runs than full tiles. */
export const prefillBlocks = (rows: number, tileRows: number, kvHeads: number): number =>
  (Math.ceil(rows / tileRows) + 16) * kvHeads

/** log2 of a power of two, else -1. */
export const shiftOf = (n: number): number => ((n & (n - 1)) === 0 ? 31 - Math.clz32(n) : -1)

/**
 * Shared memory of attention_latent_{m}x{keys} (Layout::BYTES): queries, two stages of keys, probabilities, and for each head
 * maxima and totals of the 128 / m warps that share it, a factor and a maximum.
 */
export const latentSharedBytes = (m: number, keys: number): number =>
  (m + 2 * keys) * 576 * 2 + m * keys * 2 + (2 * (128 / m) + 2) * m * 4
