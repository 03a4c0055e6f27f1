// What all SVG charts share: escaping, numbers, the colours of both themes, and the frame that makes a chart a file of its
// own. Charts carry class names only; the page or the frame brings the colours, so light, dark and print need no redraw.

/** Text as XML content or attribute. */
export function escapeXml(text: string): string {
  return text.replace(/[&<>"']/g, c => `&#${c.charCodeAt(0)};`)
}

/** A coordinate with at most one decimal. */
export const px = (n: number): string => String(Math.round(n * 10) / 10)

/** Colours of series 0 to 7 (0 is ours, 7 is the trivial placement), and of the heat map from cold to hot. */
const LIGHT_SERIES = ['#0969b8', '#b4480f', '#6f42a8', '#23793a', '#8a6500', '#ad2a63', '#00777a', '#6b7280']
const DARK_SERIES = ['#62b3f4', '#f09a5c', '#b69af0', '#6fcf86', '#dcb741', '#f07fae', '#4ccfcf', '#9aa2ae']
const LIGHT_HEAT = ['#2f6bb0', '#6f9fd0', '#b3cde6', '#eef0f2', '#fbd9a8', '#f5ab5f', '#e06c35', '#b02318']
const DARK_HEAT = ['#3f8ae0', '#2f659f', '#274766', '#2b2f36', '#6b4a23', '#a8641f', '#dd7a2c', '#ff6a52']

const variables = (bg: string, fg: string, soft: string, line: string, series: string[], heat: string[]) =>
  [
    `--bg:${bg};--fg:${fg};--soft:${soft};--line:${line}`,
    ...series.map((c, i) => `--s${i}:${c}`),
    ...heat.map((c, i) => `--h${i}:${c}`),
  ].join(';')

export const THEME_CSS = `:root{color-scheme:light dark;${variables('#ffffff', '#1b1f24', '#5a6472', '#d8dde3', LIGHT_SERIES, LIGHT_HEAT)}}
@media (prefers-color-scheme:dark){:root{${variables('#14171b', '#e7eaee', '#a3adba', '#363d47', DARK_SERIES, DARK_HEAT)}}}
@media print{:root{color-scheme:light;${variables('#ffffff', '#000000', '#444444', '#bbbbbb', LIGHT_SERIES, LIGHT_HEAT)}}}`

export const CHART_CSS = `.chart text{font:12px system-ui,sans-serif;fill:var(--fg)}
.chart .soft{fill:var(--soft)}.chart .title{font-weight:600;font-size:13px}
.chart .grid{stroke:var(--line);stroke-width:1;fill:none}.chart .axis{stroke:var(--soft);stroke-width:1;fill:none}
.chart .line{fill:none;stroke-width:2;stroke-linejoin:round}.chart .dash{stroke-dasharray:5 4;stroke-width:1.5}
${LIGHT_SERIES.map((_, i) => `.chart .s${i}{stroke:var(--s${i})}.chart .f${i}{fill:var(--s${i})}`).join('')}
${LIGHT_HEAT.map((_, i) => `.chart .h${i}{fill:var(--h${i})}`).join('')}`

export const SERIES_COLORS = LIGHT_SERIES.length

/** An inline chart: `label` is what a screen reader says. */
export function chartElement(width: number, height: number, label: string, body: string, extra = ''): string {
  return `<svg class="chart${extra}" viewBox="0 0 ${px(width)} ${px(height)}" role="img" aria-label="${escapeXml(label)}" xmlns="http://www.w3.org/2000/svg">${body}</svg>`
}

/** Margin of a chart that is a file of its own. */
const MARGIN = 14

/** The same chart as a file: brings its own colours for both themes, its own background and a margin. */
export function standaloneSvg(chart: string): string {
  const [box, width, height] = /viewBox="0 0 ([\d.]+) ([\d.]+)"/.exec(chart)!
  const w = px(Number(width) + 2 * MARGIN)
  const h = px(Number(height) + 2 * MARGIN)
  const background = `<rect x="-${MARGIN}" y="-${MARGIN}" width="${w}" height="${h}" fill="var(--bg)"/>`
  const framed = chart.replace(box, `viewBox="-${MARGIN} -${MARGIN} ${w} ${h}" width="${w}" height="${h}"`)
  return `${framed.replace('>', `><style>${THEME_CSS}\n${CHART_CSS}</style>${background}`)}\n`
}

export interface LegendItem {
  readonly name: string
  readonly color: number
  readonly dashed?: boolean
}

/** A legend that wraps at `width`, beginning at (x, y); returns its markup and the height it took. */
export function legend(
  items: readonly LegendItem[],
  x: number,
  y: number,
  width: number,
): { body: string; height: number } {
  let body = ''
  let at = x
  let row = 0
  for (const item of items) {
    const wide = 26 + item.name.length * 6.6 + 14
    if (at > x && at + wide > x + width) {
      at = x
      row++
    }
    const cy = y + row * 18
    body += `<path class="line s${item.color}${item.dashed ? ' dash' : ''}" d="M${px(at)} ${px(cy)}h20"/><text x="${px(at + 26)}" y="${px(cy + 4)}">${escapeXml(item.name)}</text>`
    at += wide
  }
  return { body, height: (row + 1) * 18 }
}

/** Round tick values that cover [low, high]. */
export function ticks(low: number, high: number, about: number): number[] {
  const span = high - low || 1
  const rough = span / about
  const power = 10 ** Math.floor(Math.log10(rough))
  const step = [1, 2, 5, 10].map(m => m * power).find(s => s >= rough)!
  const out: number[] = []
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++)
    out.push(Number((i * step).toPrecision(12)))
  return out
}

/** A tick's text: no more digits than needed. */
export function tickText(value: number): string {
  if (Math.abs(value) >= 10_000) return `${Number((value / 1000).toPrecision(3))}k`
  return String(Number(value.toPrecision(4)))
}
