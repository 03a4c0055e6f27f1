// A heat map [rows][columns] of loads relative to their row's mean. One path per class, so thousands of cells stay small.

import { HEAT_LABELS, heatClass, heatRows } from './heat-scale.js'
import { chartElement, escapeXml, px } from './svg-frame.js'

export interface HeatMap {
  readonly title: string
  /** [rows][columns] loads. */
  readonly rows: readonly (readonly number[])[]
  readonly rowLabel: string
  readonly columnLabel: string
}

export function heatMap(map: HeatMap, width: number): string {
  const left = 34
  const top = 30
  const columns = map.rows[0]?.length ?? 0
  const rows = heatRows(map.rows, columns)
  const cellWidth = (width - left) / Math.max(columns, 1)
  const cellHeight = Math.max(5, Math.min(20, 420 / Math.max(rows.length, 1)))
  const bottom = top + rows.length * cellHeight
  const gap = cellWidth > 6 && cellHeight > 6 ? 1 : 0
  const paths = new Map<number, string>()
  rows.forEach((row, r) => {
    row?.forEach((ratio, c) => {
      const k = heatClass(ratio)
      const x = left + c * cellWidth
      const y = top + r * cellHeight
      const cell = `M${px(x)} ${px(y)}h${px(cellWidth - gap)}v${px(cellHeight - gap)}h-${px(cellWidth - gap)}z`
      paths.set(k, (paths.get(k) ?? '') + cell)
    })
  })
  let body = `<text class="title" x="0" y="18">${escapeXml(map.title)}</text>`
  for (const [k, d] of [...paths].sort((a, b) => a[0] - b[0])) body += `<path class="h${k}" d="${d}"/>`
  const every = Math.max(1, Math.ceil(14 / cellHeight))
  rows.forEach((row, r) => {
    const y = top + r * cellHeight + cellHeight / 2 + 4
    if (r % every === 0) body += `<text class="soft" x="${left - 6}" y="${px(y)}" text-anchor="end">${r}</text>`
    if (row === null && cellHeight > 11) body += `<text class="soft" x="${left}" y="${px(y)}">no routed tokens</text>`
  })
  body += `<text class="soft" x="${left}" y="${px(bottom + 16)}">${escapeXml(`${map.rowLabel} ↓   ${map.columnLabel} 0-${columns - 1} →`)}</text>`
  const { body: key, height } = heatKey(left, bottom + 26, width)
  return chartElement(width, bottom + 26 + height, map.title, body + key)
}

function heatKey(left: number, top: number, width: number): { body: string; height: number } {
  const pitch = 86
  const perRow = Math.max(1, Math.floor((width - left) / pitch))
  let body = `<text class="soft" x="${left}" y="${top + 11}">load ÷ mean of its row</text>`
  HEAT_LABELS.forEach((label, k) => {
    const x = left + (k % perRow) * pitch
    const y = top + 20 + Math.floor(k / perRow) * 20
    body += `<rect class="h${k}" x="${x}" y="${y}" width="13" height="13"/><text class="soft" x="${x + 18}" y="${y + 11}">${escapeXml(label)}</text>`
  })
  return { body, height: 20 + Math.ceil(HEAT_LABELS.length / perRow) * 20 + 4 }
}
