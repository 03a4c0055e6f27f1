// A device whose work does not end: it is closed when nothing runs any more, and a process that ends before waits for nothing.
import { execFile } from 'node:child_process'
import { describe, expect, it } from 'vitest'
import { until } from '../../test/serve-echo.js'
import { leaveRunning } from './left-running.js'

const LEFT_RUNNING = new URL('../../dist/engine/left-running.js', import.meta.url).href
const EXIT = new URL('../../dist/device/cuda/exit.js', import.meta.url).href
/** What runs at the end of a process and does not come back, as a driver that waits for a kernel. */
const SCRIPT = `
  import { leaveRunning } from ${JSON.stringify(LEFT_RUNNING)}
  import { exitProcess } from ${JSON.stringify(EXIT)}
  import { createRequire } from 'node:module'
  const koffi = createRequire(${JSON.stringify(EXIT)})('koffi')
  leaveRunning({ exitProcess: code => exitProcess(code, { koffi }) }, () => true, () => console.log('closed'))
  process.on('exit', () => { for (;;); })
  console.log('ending')
  process.exitCode = 3
`

describe('a device that is left running', () => {
  it('is closed once, when nothing runs on it', async () => {
    let [looks, closes] = [0, 0]
    leaveRunning(
      {},
      () => ++looks < 3,
      () => closes++,
    )
    expect(process.listenerCount('exit')).toBeGreaterThan(0)
    await until(() => closes > 0, 'it is closed')
    await new Promise(resolve => setTimeout(resolve, 600))
    expect([looks, closes]).toEqual([3, 1])
  })

  it('does not hold up the end of the process, nor change its code', async () => {
    const ended = await new Promise<unknown>(resolve => {
      const args = ['--input-type=module', '-e', SCRIPT]
      const child = execFile(process.execPath, args, { timeout: 20_000 }, (_, stdout, stderr) =>
        resolve({ code: child.exitCode, signal: child.signalCode, stdout, stderr }),
      )
    })
    expect(ended).toEqual({ code: 3, signal: null, stdout: 'ending\n', stderr: '' })
  })
})
