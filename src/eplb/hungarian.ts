// The assignment problem: which column each row takes so that the summed value is greatest. Deterministic: shortest
// augmenting paths with potentials (Jonker and Volgenant 1987), rows in order, lowest column first on ties. O(n³).

/** Column of every row for the greatest Σ value[row][column]; `value` is [n][n] row-major and finite. */
export function assign(value: Float64Array, n: number): Int32Array {
  const rowPotential = new Float64Array(n + 1)
  const columnPotential = new Float64Array(n + 1)
  /** 1-based row matched to each 1-based column; 0 = free. */
  const rowOf = new Int32Array(n + 1)
  const previous = new Int32Array(n + 1)
  const slack = new Float64Array(n + 1)
  const done = new Uint8Array(n + 1)
  for (let row = 1; row <= n; row++) {
    rowOf[0] = row
    slack.fill(Number.POSITIVE_INFINITY)
    done.fill(0)
    let column = 0
    do {
      done[column] = 1
      const r = rowOf[column]!
      let step = Number.POSITIVE_INFINITY
      let nearest = 0
      for (let c = 1; c <= n; c++) {
        if (done[c]) continue
        const reduced = -value[(r - 1) * n + c - 1]! - rowPotential[r]! - columnPotential[c]!
        if (reduced < slack[c]!) {
          slack[c] = reduced
          previous[c] = column
        }
        if (slack[c]! < step) {
          step = slack[c]!
          nearest = c
        }
      }
      for (let c = 0; c <= n; c++) {
        if (done[c]) {
          rowPotential[rowOf[c]!]! += step
          columnPotential[c]! -= step
        } else slack[c]! -= step
      }
      column = nearest
    } while (rowOf[column] !== 0)
    while (column !== 0) {
      const from = previous[column]!
      rowOf[column] = rowOf[from]!
      column = from
    }
  }
  const columnOf = new Int32Array(n)
  for (let c = 1; c <= n; c++) columnOf[rowOf[c]! - 1] = c - 1
  return columnOf
}
