// Headless Chromium for tests of pages: from CHROMIUM, else Debian's. Tests are skipped by name where there is none.
import { existsSync } from 'node:fs'
import { type Browser, chromium } from 'playwright-core'

export const CHROMIUM = process.env['CHROMIUM'] ?? '/usr/bin/chromium'

/** null when a browser is there, else why not. */
export const noBrowser: string | null = existsSync(CHROMIUM) ? null : `no Chromium at ${CHROMIUM} (set CHROMIUM)`

export const launchBrowser = (): Promise<Browser> =>
  chromium.launch({
    executablePath: CHROMIUM,
    headless: true,
    args: [
      '--no-sandbox',
      '--disable-gpu',
      '--disable-quic',
      '--no-first-run',
      '--disable-background-networking',
      '--disable-component-update',
      '--disable-sync',
    ],
  })
