// One scale for all heat maps, on screen and on paper: load as a ratio to the mean of its row. Eight classes, cold to hot;
// class 3 is "as it should be".

/** Upper ends of classes 0 to 6; class 7 has none. */
export const HEAT_LIMITS = [0.5, 0.75, 0.95, 1.05, 1.25, 1.5, 2] as const

export const HEAT_LABELS = ['<0.5', '<0.75', '<0.95', '0.95-1.05', '<1.25', '<1.5', '<2', '≥2'] as const

/** Class 0 to 7 of a ratio. */
export function heatClass(ratio: number): number {
  const found = HEAT_LIMITS.findIndex(limit => ratio < limit)
  return found < 0 ? HEAT_LIMITS.length : found
}

/**
 * Rows as ratios to each row's mean; null where a row has no load at all.
 * Columns are merged to at most `most`, keeping the largest ratio of each group: a hot GPU must not vanish in a mean.
 */
export function heatRows(rows: readonly (readonly number[])[], most: number): (number[] | null)[] {
  return rows.map(row => {
    const mean = row.reduce((a, b) => a + b, 0) / row.length
    if (!(mean > 0)) return null
    const group = Math.ceil(row.length / most)
    const out: number[] = []
    for (let i = 0; i < row.length; i += group) out.push(Math.max(...row.slice(i, i + group)) / mean)
    return out
  })
}
