// Pages of eplb: one file that needs nothing else, and, where a browser is there, how it looks.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import type { Browser } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { launchBrowser, noBrowser } from '../../../test/browser.js'
import { run } from '../main.js'

const STAT = fileURLToPath(
  new URL('../../../test/fixtures/recorder-dumps/expert_distribution_recorder_1764420000.0.pt', import.meta.url),
)
const dir = mkdtempSync(join(tmpdir(), 'eplb-html-'))
afterAll(() => rmSync(dir, { recursive: true }))

/** Writes the report of a command as HTML and SVG; gives both texts. */
async function pages(args: string[], name: string) {
  const html = join(dir, `${name}.html`)
  const svg = join(dir, `${name}.svg`)
  const io = {
    out: () => {},
    err: () => {},
    outIsTerminal: false,
    errIsTerminal: false,
    columns: 100,
    env: {},
    onSignal: () => () => {},
  }
  expect(await run(['eplb', ...args, '--html', html, '--svg', svg], io)).toBe(0)
  return { html: readFileSync(html, 'utf8'), svg: readFileSync(svg, 'utf8'), path: html, svgPath: svg }
}

const CLUSTER = ['--gpus', '8', '--redundant', '8']
const COMMANDS: [string, string[]][] = [
  ['plan', ['plan', STAT, ...CLUSTER, '--current', 'trivial', '--expert-bytes', '44MB', '--out', join(dir, 'p.json')]],
  ['compare', ['compare', STAT, ...CLUSTER, '--last', '40']],
  ['replay', ['replay', STAT, ...CLUSTER, '--last', '80']],
  ['sweep', ['sweep', STAT, '--gpus', '4,8,16', '--redundant', '8', '--last', '40']],
]

describe('HTML reports', () => {
  for (const [name, args] of COMMANDS) {
    it(`${name} is one file that needs nothing else`, async () => {
      const { html, svg } = await pages(args, name)
      for (const text of [html, svg]) {
        expect(text).not.toMatch(/<script|<link|<img|@import|url\(|\son\w+=|NaN|undefined/)
        expect(text.replaceAll('http://www.w3.org/2000/svg', '')).not.toMatch(/https?:/)
        expect(text).toContain('prefers-color-scheme:dark')
        expect(text).toContain('@media print')
      }
      expect(html.match(/<svg/g)!.length).toBeGreaterThanOrEqual(2)
      expect(svg).toMatch(/^<svg [^>]*viewBox="-14 -14 [\d.]+ [\d.]+"/)
    })
  }

  it('shows a file name as text, whatever it is', async () => {
    const evil = join(dir, '<b onclick="alert(1)">&.json')
    writeFileSync(
      evil,
      JSON.stringify([
        [5, 1, 1, 1],
        [1, 1, 1, 9],
      ]),
    )
    const { html } = await pages(['plan', evil, '--gpus', '2'], 'evil')
    expect(html).not.toContain('<b onclick')
    expect(html).toContain('&#60;b onclick=&#34;alert(1)&#34;&#62;&#38;.json')
  })
})

describe.skipIf(noBrowser !== null)(
  `HTML reports in a browser${noBrowser === null ? '' : ` (skipped: ${noBrowser})`}`,
  () => {
    let browser: Browser
    beforeAll(async () => {
      browser = await launchBrowser()
    })
    afterAll(async () => {
      await browser.close()
    })

    for (const [name, args] of COMMANDS) {
      it(`${name} fits wide and narrow, light and dark, and asks for nothing`, async () => {
        const { path } = await pages(args, name)
        const backgrounds: string[] = []
        for (const [colorScheme, width] of [
          ['light', 1000],
          ['dark', 1000],
          ['light', 360],
        ] as const) {
          const page = await browser.newPage({ viewport: { width, height: 800 }, colorScheme })
          const asked: string[] = []
          page.on('request', request => asked.push(request.url()))
          await page.goto(pathToFileURL(path).href)
          // The smallest text of visible charts, in CSS pixels as shown; and whether anything sticks out sideways.
          const seen = (await page.evaluate(`(() => {
          const shown = [...document.querySelectorAll('svg.chart')].filter(s => s.getBoundingClientRect().width > 0)
          return {
            charts: shown.length,
            smallest: Math.min(...shown.map(s => 12 * s.getBoundingClientRect().width / s.viewBox.baseVal.width)),
            overflow: document.documentElement.scrollWidth - innerWidth,
            background: getComputedStyle(document.body).backgroundColor,
            outside: shown.flatMap(s => [...s.querySelectorAll('text')].filter(t => {
              const a = t.getBoundingClientRect(), b = s.getBoundingClientRect()
              return a.right > b.right + 3 || a.left < b.left - 3 || a.bottom > b.bottom + 3
            }).map(t => t.textContent)),
          }
        })()`)) as { charts: number; smallest: number; overflow: number; background: string; outside: string[] }
          expect(seen.charts).toBeGreaterThan(0)
          expect(seen.smallest).toBeGreaterThanOrEqual(11)
          expect(seen.overflow).toBeLessThanOrEqual(0)
          expect(seen.outside).toEqual([])
          expect(asked).toEqual([pathToFileURL(path).href])
          backgrounds.push(seen.background)
          await page.close()
        }
        expect(backgrounds).toEqual(['rgb(255, 255, 255)', 'rgb(20, 23, 27)', 'rgb(255, 255, 255)'])
      })
    }
  },
)
