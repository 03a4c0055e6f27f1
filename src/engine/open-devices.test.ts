// A device whose work does not end: it is closed when nothing runs any more, and a process that ends before waits for nothing.
import { execFile } from 'node:child_process'
import { describe, expect, it } from 'vitest'
import { until } from '../../test/serve-echo.js'
import { closeLater, openDeviceUntil } from './open-devices.js'

const built = (file: string) => new URL(`../../dist/${file}`, import.meta.url).href
const EXIT = built('device/cuda/exit.js')

/** What runs at the end of a process and does not come back, as a driver that waits for a kernel. */
const script = (between: string) => `
  import { openDeviceUntil } from ${JSON.stringify(built('engine/open-devices.js'))}
  import { exitProcess } from ${JSON.stringify(EXIT)}
  import { createRequire } from 'node:module'
  const koffi = createRequire(${JSON.stringify(EXIT)})('koffi')
  const closed = openDeviceUntil({ exitProcess: code => exitProcess(code, { koffi }) })
  ${between}
  process.on('exit', () => console.log('an exit as usual'))
  console.log('ending')
  process.exitCode = 3
`

const run = (source: string): Promise<unknown> =>
  new Promise(resolve => {
    const args = ['--input-type=module', '-e', source]
    const child = execFile(process.execPath, args, { timeout: 20_000 }, (_, stdout, stderr) =>
      resolve({ code: child.exitCode, signal: child.signalCode, stdout, stderr }),
    )
  })

describe('a device in use', () => {
  it('is closed later, once, when nothing runs on it', async () => {
    let [looks, closes] = [0, 0]
    closeLater(
      () => ++looks < 3,
      () => closes++,
    )
    await until(() => closes > 0, 'it is closed')
    await new Promise(resolve => setTimeout(resolve, 600))
    expect([looks, closes]).toEqual([3, 1])
  })

  it('does not hold up the end of the process, nor change its code', async () => {
    expect(await run(script("process.on('exit', () => { for (;;); })"))).toEqual({
      ...{ code: 3, signal: null, stdout: 'ending\n', stderr: '' },
    })
  })

  it('changes nothing once it is closed', async () => {
    expect(await run(script('closed()'))).toMatchObject({ code: 3, stdout: 'ending\nan exit as usual\n' })
    const before = process.listenerCount('exit')
    const [first, second] = [openDeviceUntil({}), openDeviceUntil({})]
    expect(process.listenerCount('exit')).toBe(before + 1)
    first()
    expect(process.listenerCount('exit')).toBe(before + 1)
    second()
    expect(process.listenerCount('exit')).toBe(before)
  })
})
