// The page at / in a real browser, against a real server.
import type { Browser, Page } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { launchBrowser, noBrowser } from '../../test/browser.js'
import { type EchoServer, serveEcho, until } from '../../test/serve-echo.js'

describe.skipIf(noBrowser !== null)(`the page${noBrowser === null ? '' : ` (skipped: ${noBrowser})`}`, () => {
  let browser: Browser
  let echo: EchoServer
  beforeAll(async () => {
    browser = await launchBrowser()
    echo = await serveEcho({}, { stepMs: 5, contextLength: 400 })
  })
  afterAll(async () => {
    await browser?.close()
    await echo?.[Symbol.asyncDispose]()
  })

  async function open(url: string, width = 900): Promise<{ page: Page; problems: string[] }> {
    const page = await browser.newPage({ viewport: { width, height: 800 } })
    const problems: string[] = []
    page.on('pageerror', error => problems.push(error.message))
    page.on('console', message => {
      if (message.type() === 'error' && !message.text().includes('status of 4')) problems.push(message.text())
    })
    await page.goto(url)
    return { page, problems }
  }

  it('streams a completion and tells its speed', async () => {
    const { page, problems } = await open(echo.server.url)
    await page.getByText('echo, 400 tokens of context').waitFor()
    await page.getByLabel('Prompt').fill('abc')
    await page.getByLabel('Most tokens').fill('12')
    await page.getByRole('button', { name: 'Generate' }).click()
    await page.getByText('ended by length').waitFor()
    expect(await page.getByLabel('Output').textContent()).toBe('abcabcabcabc')
    expect(await page.getByRole('status').textContent()).toMatch(/^12 tokens · [\d.]+ tokens\/s · first after \d+ ms/)
    expect(echo.engine.requests.at(-1)!.sampling).toMatchObject({ temperature: 1, maxTokens: 12 })
    expect(problems).toEqual([])
    await page.close()
  })

  it('chats, with the temperature that was set', async () => {
    const { page, problems } = await open(echo.server.url)
    await page.getByLabel('Chat').check()
    await page.getByLabel('Prompt').fill('hi')
    await page.getByLabel('Temperature').fill('0.5')
    await page.getByLabel('Most tokens').fill('8')
    await page.getByRole('button', { name: 'Generate' }).click()
    await page.getByText('ended by length').waitFor()
    expect(await page.getByLabel('Output').textContent()).toBe('user: hi')
    expect(echo.engine.requests.at(-1)!.sampling.temperature).toBe(0.5)
    expect(problems).toEqual([])
    await page.close()
  })

  it('stops when asked, and the engine stops too', async () => {
    const { page } = await open(echo.server.url)
    await page.getByLabel('Most tokens').fill('300')
    await page.getByRole('button', { name: 'Generate' }).click()
    await page.getByText('tokens/s').waitFor()
    await page.getByRole('button', { name: 'Stop' }).click()
    await page.getByText('stopped').waitFor()
    await until(() => echo.engine.state()[0]!.running === 0, 'the engine stopped')
    expect(await page.getByRole('button', { name: 'Generate' }).isEnabled()).toBe(true)
    await page.close()
  })

  it('shows errors of the server, before and during a stream', async () => {
    const { page } = await open(echo.server.url)
    await page.getByLabel('Most tokens').fill('4000')
    await page.getByRole('button', { name: 'Generate' }).click()
    await page.getByRole('alert').getByText('the context of this model is 400 tokens').waitFor()
    await page.getByLabel('Most tokens').fill('20')
    await page.getByLabel('Prompt').fill('FAIL')
    await page.getByRole('button', { name: 'Generate' }).click()
    await page.getByRole('alert').getByText('the echo broke').waitFor()
    await page.close()
  })

  it('asks for the API key when there is one', async () => {
    await using locked = await serveEcho({ apiKey: 'k1' })
    const { page } = await open(locked.server.url)
    await page.getByText('this server wants an API key').waitFor()
    await page.getByLabel('API key').fill('k1')
    await page.getByLabel('API key').blur()
    await page.getByText('echo, 256 tokens of context').waitFor()
    await page.close()
  })

  it('fits a narrow screen, in light and dark', async () => {
    for (const colorScheme of ['light', 'dark'] as const) {
      const { page } = await open(echo.server.url, 360)
      await page.emulateMedia({ colorScheme })
      await page.getByLabel('Prompt').fill('x'.repeat(80))
      await page.getByLabel('Most tokens').fill('200')
      await page.getByRole('button', { name: 'Generate' }).click()
      await page.getByText('ended by length').waitFor()
      const scroll = await page.evaluate('document.documentElement.scrollWidth')
      expect(scroll).toBeLessThanOrEqual(360)
      const shots = process.env['PAGE_SHOTS']
      if (shots) await page.screenshot({ path: `${shots}/page-${colorScheme}.png`, fullPage: true })
      await page.close()
    }
  })
})
