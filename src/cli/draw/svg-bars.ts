// Horizontal bars from zero, their values in a column at the right: names to the left on wide charts, above their bar on
// narrow ones.

import { chartElement, escapeXml, px } from './svg-frame.js'

export interface Bar {
  readonly name: string
  /** null: no bar, `text` says why. */
  readonly value: number | null
  readonly text: string
  readonly color: number
}

export interface BarChart {
  readonly title: string
  readonly bars: readonly Bar[]
  /** Full width; the largest value when absent. */
  readonly most?: number
  /** A dashed line at a value that bars are measured against. */
  readonly mark?: { readonly value: number; readonly text: string }
}

export function barChart(chart: BarChart, width: number): string {
  const narrow = width < 500
  const nameWidth = narrow ? 0 : Math.max(...chart.bars.map(b => b.name.length)) * 6.8 + 12
  const valueWidth = Math.max(...chart.bars.map(b => (b.value === null ? 0 : b.text.length))) * 6.8 + 12
  const pitch = narrow ? 40 : 26
  const top = chart.mark === undefined ? 34 : 52
  const height = top + chart.bars.length * pitch + 6
  const most = chart.most ?? Math.max(...chart.bars.map(b => b.value ?? 0), 1e-9)
  const room = width - nameWidth - valueWidth
  let body = `<text class="title" x="0" y="18">${escapeXml(chart.title)}</text>`
  chart.bars.forEach((bar, i) => {
    const y = top + i * pitch
    const barY = narrow ? y + 16 : y
    body += `<text x="0" y="${px(y + (narrow ? 11 : 14))}">${escapeXml(bar.name)}</text>`
    if (bar.value === null) {
      const text = clip(bar.text, Math.floor((width - nameWidth) / 6.4))
      body += `<text class="soft" x="${px(nameWidth)}" y="${px(barY + 14)}">${escapeXml(text)}</text>`
      return
    }
    const wide = Math.max(1, (Math.min(bar.value, most) / most) * room)
    body += `<rect class="f${bar.color}" x="${px(nameWidth)}" y="${px(barY)}" width="${px(wide)}" height="18" rx="2"/><text x="${width}" y="${px(barY + 13)}" text-anchor="end">${escapeXml(bar.text)}</text>`
  })
  if (chart.mark !== undefined) {
    const x = nameWidth + (chart.mark.value / most) * room
    body += `<path class="axis dash" d="M${px(x)} ${top - 8}V${px(height)}"/><text class="soft" x="${px(x)}" y="${top - 13}" text-anchor="${x > width * 0.7 ? 'end' : 'middle'}">${escapeXml(chart.mark.text)}</text>`
  }
  const label = chart.bars.map(b => `${b.name} ${b.text}`).join(', ')
  return chartElement(width, height, `${chart.title}: ${label}`, body)
}

const clip = (text: string, length: number) =>
  text.length <= length ? text : `${text.slice(0, Math.max(0, length - 1))}…`
