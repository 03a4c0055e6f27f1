// One self-contained HTML page: charts inline, no script, no outside resource; light and dark by the reader's setting,
// printable, and narrow charts in place of wide ones on small screens.

import { CHART_CSS, escapeXml, THEME_CSS } from './svg-frame.js'

/** Widths at which charts are drawn, in CSS pixels. */
const WIDE = 880
const NARROW = 328

const PAGE_CSS = `*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif}
main{max-width:${WIDE + 40}px;margin:0 auto;padding:24px 20px 48px}h1{font-size:24px;line-height:1.25;margin:0 0 4px}h2{font-size:18px;margin:36px 0 8px}
p,h1,h2{overflow-wrap:anywhere}p{margin:8px 0}.soft{color:var(--soft)}code{font:13px ui-monospace,monospace;overflow-wrap:anywhere}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:10px;margin:18px 0;padding:0}
.tiles li{list-style:none;border:1px solid var(--line);border-radius:8px;padding:10px 12px}.tiles b{display:block;font-size:22px;line-height:1.3;font-variant-numeric:tabular-nums}
figure{margin:16px 0}.chart{display:block;width:100%;height:auto}.narrow{display:none}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:5px 12px 5px 0;border-bottom:1px solid var(--line);vertical-align:top;white-space:nowrap}td.n,th.n{text-align:right}td.long{white-space:normal;min-width:220px}
footer{margin-top:40px;color:var(--soft);font-size:13px}
@media (max-width:600px){main{padding:16px 16px 40px}.wide{display:none}.narrow{display:block}}
@media print{main{max-width:none;padding:0}figure,tr,.tiles li{break-inside:avoid}h2{break-after:avoid}.wide{display:block}.narrow{display:none}.scroll{overflow:visible}}`

/** A chart at both widths; style sheets show the one that fits. */
export function figure(draw: (width: number) => string): string {
  return `<figure><div class="wide">${draw(WIDE)}</div><div class="narrow">${draw(NARROW)}</div></figure>`
}

export interface Tile {
  readonly name: string
  readonly value: string
  readonly note?: string
}

export function tiles(items: readonly Tile[]): string {
  const one = ({ name, value, note }: Tile) =>
    `<li>${escapeXml(name)}<b>${escapeXml(value)}</b>${note === undefined ? '' : `<span class="soft">${escapeXml(note)}</span>`}</li>`
  return `<ul class="tiles">${items.map(one).join('')}</ul>`
}

/** A table; columns whose cells all look like numbers go to the right. Scrolls sideways by itself where it must. */
export function htmlTable(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const numeric = head.map(
    (_, c) => rows.length > 0 && rows.every(r => /^[-–+~\d.,%×]*( ?[a-zµ]{1,3}i?B?)?$/i.test(r[c] ?? '')),
  )
  const row = (cells: readonly string[], tag: string) =>
    `<tr>${head.map((_, c) => `<${tag}${cellClass(numeric[c] === true, cells[c] ?? '')}>${escapeXml(cells[c] ?? '')}</${tag}>`).join('')}</tr>`
  return `<div class="scroll" tabindex="0" role="region" aria-label="table"><table><thead>${row(head, 'th')}</thead><tbody>${rows.map(r => row(r, 'td')).join('')}</tbody></table></div>`
}

const cellClass = (numeric: boolean, text: string): string =>
  numeric ? ' class="n"' : text.length > 40 ? ' class="long"' : ''

export const heading = (text: string): string => `<h2>${escapeXml(text)}</h2>`
export const paragraph = (text: string, soft = false): string =>
  `<p${soft ? ' class="soft"' : ''}>${escapeXml(text)}</p>`
export const command = (text: string): string => `<p><code>${escapeXml(text)}</code></p>`

const EPLB_FOOTER =
  'Made by <code>switchyard eplb</code>. Balancedness of a layer is the mean load of its GPUs over the largest; 1 is perfect.'

/** The whole page; `sections` and `footer` are markup, title and subtitle text. */
export function htmlPage(title: string, subtitle: string, sections: readonly string[], footer = EPLB_FOOTER): string {
  return `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1"><meta name="generator" content="switchyard"><title>${escapeXml(title)}</title>
<style>${THEME_CSS}
${PAGE_CSS}
${CHART_CSS}</style></head>
<body><main><h1>${escapeXml(title)}</h1><p class="soft">${escapeXml(subtitle)}</p>
${sections.join('\n')}
<footer>${footer}</footer>
</main></body></html>
`
}
