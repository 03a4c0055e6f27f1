// How rows are rounded when they travel, in double precision, from the formats' definitions: bfloat16 (8 significant bits),
// e4m3 with a scale amax/448 for 128 elements, int8 with a scale amax/127 for the row; ties to even. Shares nothing with
// the product. Every rounded element comes with its half step and how near it lies to the point where rounding turns.

export const WIRES = ['bf16', 'fp8', 'int8'] as const
export type Wire = (typeof WIRES)[number]

export interface RoundedElement {
  readonly value: number
  /** The neighbour that a slightly different input would have been rounded to. */
  readonly other: number
  /** Half the distance of neighbours: no rounding error is larger. */
  readonly halfStep: number
  /** How far the input is from being rounded to `other`. */
  readonly distance: number
}

/** Elements that share a scale in fp8. */
const BLOCK = 128

export function roundRow(row: Float64Array, wire: Wire): RoundedElement[] {
  if (wire === 'bf16') return Array.from(row, v => onGrid(v, 2 ** (exponentOf(v) - 7), 1))
  const amax = (from: number, to: number) => row.subarray(from, to).reduce((m, v) => Math.max(m, Math.abs(v)), 0)
  if (wire === 'int8') {
    const scale = Math.max(amax(0, row.length), 1e-30) / 127
    return Array.from(row, v => onGrid(v / scale, 1, scale))
  }
  return Array.from(row, (v, i) => {
    const first = i - (i % BLOCK)
    const scale = Math.max(amax(first, first + BLOCK), 1e-4) / 448
    const scaled = v / scale
    // Three bits after the leading one; below 2^-6 all steps are 2^-9.
    return onGrid(scaled, 2 ** (Math.max(exponentOf(scaled), -6) - 3), scale)
  })
}

const exponentOf = (v: number): number => (v === 0 ? -126 : Math.floor(Math.log2(Math.abs(v))))

function onGrid(v: number, step: number, scale: number): RoundedElement {
  const k = v / step
  const below = Math.floor(k)
  const nearest = k - below > 0.5 || (k - below === 0.5 && below % 2 !== 0) ? below + 1 : below
  return {
    value: nearest * step * scale,
    other: (k > nearest ? nearest + 1 : nearest - 1) * step * scale,
    halfStep: (step * scale) / 2,
    distance: (0.5 - Math.abs(k - nearest)) * step * scale,
  }
}
