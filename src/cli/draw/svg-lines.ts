// A line chart: one value per x for each series, optional marks (where something happened) and a dashed style for bounds.

import { chartElement, escapeXml, type LegendItem, legend, px, ticks, tickText } from './svg-frame.js'

export interface LineSeries extends LegendItem {
  /** NaN leaves a gap. */
  readonly values: readonly number[]
  /** Indices that get a round mark. */
  readonly marks?: readonly number[]
}

export interface LineChart {
  readonly title: string
  readonly xLabel: string
  readonly yLabel: string
  /** x of each value; 0, 1, 2 … when absent. */
  readonly x?: readonly number[]
  /** Values are placed at equal distances and every x is labelled (few, unevenly spaced x). */
  readonly evenX?: boolean
  readonly series: readonly LineSeries[]
  /** Lowest y shown; picked below the smallest value when absent. */
  readonly yFrom?: number
  readonly yTo?: number
}

/** `plotHeight` is the height with a legend of one row; further rows come on top. */
export function lineChart(chart: LineChart, width: number, plotHeight = 300): string {
  const left = 46
  const right = 14
  const { body: legendBody, height: legendHeight } = legend(chart.series, 0, 40, width - right)
  const height = plotHeight + legendHeight - 18
  const top = 40 + legendHeight
  const bottom = height - 40
  const all = chart.series.flatMap(s => s.values).filter(Number.isFinite)
  const yTo = chart.yTo ?? Math.max(...all, 0)
  const yFrom = chart.yFrom ?? Math.max(0, Math.floor((Math.min(...all, yTo) - 0.02) * 10) / 10)
  const count = Math.max(...chart.series.map(s => s.values.length), 1)
  const xs = chart.x ?? Array.from({ length: count }, (_, i) => i)
  const xFrom = chart.evenX ? 0 : xs[0]!
  const xSpan = (chart.evenX ? xs.length - 1 : xs.at(-1)! - xFrom) || 1
  const X = (i: number) => left + (((chart.evenX ? i : xs[i]!) - xFrom) / xSpan) * (width - left - right)
  const Y = (v: number) => bottom - ((v - yFrom) / (yTo - yFrom || 1)) * (bottom - top)

  let body = `<text class="title" x="0" y="18">${escapeXml(chart.title)}</text>${legendBody}`
  for (const tick of ticks(yFrom, yTo, 5)) {
    body += `<path class="grid" d="M${left} ${px(Y(tick))}H${width - right}"/><text class="soft" x="${left - 6}" y="${px(Y(tick) + 4)}" text-anchor="end">${tickText(tick)}</text>`
  }
  body += `<path class="axis" d="M${left} ${bottom}H${width - right}"/>`
  if (chart.evenX) {
    const every = Math.ceil((xs.length * 34) / (width - left - right))
    xs.forEach((x, i) => {
      if (i % every === 0) body += xTick(X(i), bottom, tickText(x))
    })
  } else {
    for (const tick of ticks(xFrom, xFrom + xSpan, Math.max(3, width / 90))) {
      body += xTick(left + ((tick - xFrom) / xSpan) * (width - left - right), bottom, tickText(tick))
    }
  }
  body += `<text class="soft" x="${width - right}" y="${bottom + 33}" text-anchor="end">${escapeXml(chart.xLabel)}</text>`
  body += `<text class="soft" x="${left}" y="${bottom + 33}">${escapeXml(chart.yLabel)}</text>`
  // The first series is ours: drawn last, so that it lies on top.
  for (const series of [...chart.series].reverse()) {
    body += `<path class="line s${series.color}${series.dashed ? ' dash' : ''}" d="${path(series.values, X, Y)}"/>`
    if (series.values.length === 1) body += mark(X(0), Y(series.values[0]!), series.color, 4)
    for (const i of series.marks ?? []) {
      const v = series.values[i]
      if (v !== undefined && Number.isFinite(v)) body += mark(X(i), Y(v), series.color, 3.5)
    }
  }
  return chartElement(width, height, `${chart.title}: ${chart.series.map(s => s.name).join(', ')}`, body)
}

const xTick = (x: number, bottom: number, text: string) =>
  `<path class="axis" d="M${px(x)} ${bottom}v4"/><text class="soft" x="${px(x)}" y="${bottom + 17}" text-anchor="middle">${text}</text>`

const mark = (x: number, y: number, color: number, r: number) =>
  `<circle class="f${color}" cx="${px(x)}" cy="${px(y)}" r="${r}"/>`

function path(values: readonly number[], X: (i: number) => number, Y: (v: number) => number): string {
  let d = ''
  let pen = 'M'
  values.forEach((v, i) => {
    if (!Number.isFinite(v)) {
      pen = 'M'
      return
    }
    d += `${pen}${px(X(i))} ${px(Y(v))}`
    pen = 'L'
  })
  return d
}
