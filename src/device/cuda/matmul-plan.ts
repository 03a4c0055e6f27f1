// What the choice of a product's algorithm depends on besides its sizes. Pure.

/**
 * Rows that share a choice: each count of its own up to 16, then eighths of powers of two. Fine enough that an estimate for
 * the first count met suits the others, coarse enough that few are asked for.
 */
export function rowBucket(rows: number): number {
  if (rows <= 16) return rows
  const step = 2 ** (Math.floor(Math.log2(rows - 1)) - 2)
  return Math.ceil(rows / step) * step
}

/** Largest power of two, 256 at most, that divides address and row bytes: what vector loads of whole rows may assume. */
export function alignmentOf(address: number, rowBytes: number): number {
  let alignment = 256
  while (alignment > 1 && (address % alignment !== 0 || rowBytes % alignment !== 0)) alignment /= 2
  return alignment
}
