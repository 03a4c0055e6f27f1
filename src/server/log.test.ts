// Who reads the log decides its form: lines for people on a terminal, JSON for everything else.
import { spawnSync } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import { describe, expect, it } from 'vitest'
import { createLogger } from './log.js'

describe('the log', () => {
  it('is a line for people on a terminal: time, level, message, fields', () => {
    let written = ''
    const terminal = { isTTY: true, write: (text: string) => (written += text) } as unknown as NodeJS.WriteStream
    const log = createLogger('info', terminal)
    log.info({ status: 200, ms: 12 }, 'POST /v1/completions')
    log.debug('not at this level')
    log.error({ code: 'SY_X', cause: { rank: 1 } }, 'it broke')
    expect(written.split('\n')).toEqual([
      expect.stringMatching(/^\d\d:\d\d:\d\d info POST \/v1\/completions status=200 ms=12$/),
      expect.stringMatching(/^\d\d:\d\d:\d\d error it broke code=SY_X cause=\{"rank":1\}$/),
      '',
    ])
  })

  it('is JSON on stderr where that is no terminal', () => {
    const module = fileURLToPath(new URL('../../dist/server/log.js', import.meta.url))
    const script = `import(${JSON.stringify(module)}).then(m => m.createLogger('info').info({ status: 200 }, 'hello'))`
    const { stdout, stderr } = spawnSync(process.execPath, ['-e', script], { encoding: 'utf8' })
    expect(stdout).toBe('')
    expect(JSON.parse(stderr)).toMatchObject({ level: 30, msg: 'hello', status: 200, time: expect.any(Number) })
  })
})
