// Charts in terminals and as SVG: scales, what is merged when there is no room, texts that stay text.
import { describe, expect, it } from 'vitest'
import { heatClass, heatRows } from './heat-scale.js'
import { barChart, heatMap, lineChart, standaloneSvg, terminalBar, terminalHeatMap, terminalLines } from './index.js'
import { htmlTable } from './page.js'
import { legend, ticks, tickText } from './svg-frame.js'

describe('scales', () => {
  it('classes meet at their limits', () => {
    expect([0, 0.5, 0.74, 0.95, 1, 1.05, 1.3, 1.5, 2, 9].map(heatClass)).toEqual([0, 1, 1, 3, 3, 4, 5, 6, 7, 7])
  })

  it('merging columns keeps the hottest, and rows without load are null', () => {
    expect(
      heatRows(
        [
          [1, 1, 1, 5],
          [0, 0, 0, 0],
        ],
        2,
      ),
    ).toEqual([[0.5, 2.5], null])
  })

  it('ticks are round and inside', () => {
    expect(ticks(0, 1, 5)).toEqual([0, 0.2, 0.4, 0.6, 0.8, 1])
    expect(ticks(0.63, 1, 5)).toEqual([0.7, 0.8, 0.9, 1])
    expect(ticks(0, 299, 6)).toEqual([0, 50, 100, 150, 200, 250])
    expect(ticks(3, 3, 5).every(t => t >= 3 && t <= 4)).toBe(true)
    expect([0.1 + 0.2, 1234, 25_000].map(tickText)).toEqual(['0.3', '1234', '25k'])
  })

  it('a legend wraps', () => {
    const items = ['one', 'two', 'three'].map((name, color) => ({ name, color }))
    expect(legend(items, 0, 0, 1000).height).toBe(18)
    expect(legend(items, 0, 0, 100).height).toBe(54)
  })
})

describe('terminal pictures', () => {
  const style = { width: 40, color: false }
  it('heat maps show one mark a cell, hot ones fuller', () => {
    const lines = terminalHeatMap(
      [
        [1, 1, 1, 1],
        [0, 0, 0, 8],
      ],
      style,
      'layer',
    ).split('\n')
    expect(lines[1]).toBe('    0 │░░░░░░░░│')
    expect(lines[2]).toBe('    1 │      ##│')
  })

  it('heat maps wider than the terminal are merged', () => {
    const [, row] = terminalHeatMap([Array.from({ length: 300 }, () => 1)], style, 'layer').split('\n')
    expect(row!.length).toBeLessThanOrEqual(40)
    expect(row).toMatch(/│░{10,}│$/)
  })

  it('colours end where they began', () => {
    const text = terminalHeatMap([[1, 9]], { width: 40, color: true }, 'layer')
    expect(text.split('\n')[1]).toBe('    0 \x1b[48;5;25m  \x1b[48;5;208m  \x1b[0m')
  })

  it('bars count eighths', () => {
    expect([0, 0.5, 1, 2].map(v => terminalBar(v, 1, 4))).toEqual(['', '██', '████', '████'])
    expect(terminalBar(1, 32, 4)).toBe('▏')
  })

  it('lines span the range', () => {
    expect(terminalLines([{ name: 'a', values: [0, 0.5, 1] }], style, 0, 1)).toBe('a  ▁▅█\n')
  })
})

describe('SVG', () => {
  it('lines break at gaps and mark what happened', () => {
    const svg = lineChart(
      {
        title: 'T & <t>',
        xLabel: 'x',
        yLabel: 'y',
        yFrom: 0,
        yTo: 1,
        series: [{ name: 's', color: 0, values: [0, 1, Number.NaN, 1, 0.5], marks: [1, 2] }],
      },
      400,
    )
    expect(svg).toContain('T &#38; &#60;t&#62;')
    const d = /class="line s0" d="(M[\d.]+ [\d.]+L[^"]*)"/.exec(svg)![1]!
    expect(d.match(/M/g)!.length).toBe(2)
    expect(svg.match(/<circle/g)!.length).toBe(1)
    expect(svg).not.toContain('NaN')
  })

  it('bars are in proportion and refusals are words', () => {
    const bars = [
      { name: 'a', value: 2, text: '2', color: 0 },
      { name: 'b', value: 1, text: '1', color: 1 },
      { name: 'c', value: null, text: 'refused', color: 1 },
    ]
    const svg = barChart({ title: 'T', bars }, 600)
    const widths = [...svg.matchAll(/<rect class="f\d" [^>]*width="([\d.]+)"/g)].map(m => Number(m[1]))
    expect(widths.length).toBe(2)
    expect(widths[0]! / widths[1]!).toBeCloseTo(2, 1)
    expect(svg).toContain('refused')
  })

  it('heat maps draw every cell once', () => {
    const rows = [
      [1, 2, 3],
      [0, 0, 0],
      [3, 2, 1],
    ]
    const svg = heatMap({ title: 'T', rows, rowLabel: 'layer', columnLabel: 'GPU' }, 500)
    const cells = [...svg.matchAll(/<path class="h\d" d="([^"]*)"/g)].reduce((n, m) => n + m[1]!.match(/M/g)!.length, 0)
    expect(cells).toBe(6)
    expect(svg).toContain('no routed tokens')
  })

  it('a chart becomes a file with its colours', () => {
    const svg = standaloneSvg(barChart({ title: 'T', bars: [{ name: 'a', value: 1, text: '1', color: 0 }] }, 600))
    expect(svg).toMatch(/^<svg [^>]*width="628"[^>]*><style>:root/)
    expect(svg).toMatch(/<\/svg>\n$/)
  })

  it('tables align numbers and escape text', () => {
    const html = htmlTable(
      ['name', 'n'],
      [
        ['<x>', '1.5 GiB'],
        ['y', '–'],
      ],
    )
    expect(html).toContain('<td>&#60;x&#62;</td><td class="n">1.5 GiB</td>')
  })
})
