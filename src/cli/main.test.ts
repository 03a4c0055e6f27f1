// Commands, flags, help and errors as a user meets them. What needs a model is in test/cli.test.ts.
import { describe, expect, it } from 'vitest'
import { captureIo } from '../../test/capture-io.js'
import { ENGINE_FLAGS, SERVER_FLAGS } from '../config/flags.js'
import { IGNORED_FLAGS, REFUSED_FLAGS } from '../config/sglang-flags.js'
import { run } from './main.js'
import { version } from './version.js'

const at = async (...args: string[]) => {
  const io = captureIo()
  const code = await run(args, io)
  return { code, stdout: io.stdout, stderr: io.stderr }
}

describe('help', () => {
  it('shows commands in groups, also when nothing is asked', async () => {
    for (const args of [[], ['--help'], ['-h'], ['help']]) {
      const { code, stdout, stderr } = await at(...args)
      expect([code, stderr]).toEqual([0, ''])
      for (const word of ['Run a model:', 'serve', 'generate', 'doctor', 'Examples:', 'Exit codes'])
        expect(stdout).toContain(word)
    }
    expect((await at('bench')).stdout).toContain('engine')
  })

  it.each(['serve', 'generate', 'logits', 'explain', 'bench engine'])('%s takes every engine flag', async command => {
    const { code, stdout } = await at(...command.split(' '), '--help')
    expect(code).toBe(0)
    const text = stdout.replace(/\s+/g, ' ')
    for (const flag of Object.values(ENGINE_FLAGS)) expect(text).toContain(`--${flag.name} `)
    expect(text).toContain('default: 512')
    expect(text).toContain('auto|float32|bfloat16')
    expect(stdout).toContain('Scheduling:')
    expect(stdout).toContain('Examples:')
  })

  it('names the environment of server flags', async () => {
    const { stdout } = await at('serve', '--help')
    for (const flag of Object.values(SERVER_FLAGS)) expect(stdout).toContain(`--${flag.name}`)
    expect(stdout.replace(/\s+/g, ' ')).toContain('env: PORT')
  })

  it('knows its version', async () => {
    expect((await at('--version')).stdout).toBe(`${version}\n`)
  })
})

describe('mistakes', () => {
  it.each([
    [['srve', 'x'], 'SY_CONFIG_UNKNOWN_COMMAND', 'did you mean switchyard serve?'],
    [['dance'], 'SY_CONFIG_UNKNOWN_COMMAND', 'switchyard --help'],
    [['bench', 'engin'], 'SY_CONFIG_UNKNOWN_COMMAND', 'did you mean switchyard bench engine?'],
    [['generate', 'd', '--dtpye', 'auto'], 'SY_CONFIG_UNKNOWN_FLAG', 'did you mean --dtype?'],
    [['serve', 'd', '--chunked-prefil-size=5'], 'SY_CONFIG_UNKNOWN_FLAG', 'did you mean --chunked-prefill-size?'],
    [['explain', 'd', '--tp', '8'], 'SY_CONFIG_UNKNOWN_FLAG', 'did you mean --tp-size?'],
    [['serve', 'd', '--max-model-len=99'], 'SY_CONFIG_UNKNOWN_FLAG', 'did you mean --context-length?'],
    [['eplb', 'plan', 'x.pt', '--ep-size', '8'], 'SY_CONFIG_UNKNOWN_FLAG', 'did you mean --gpus?'],
    [['explain', 'd', '--enable-dance'], 'SY_CONFIG_UNKNOWN_FLAG', 'see --help'],
    [['explain', 'd', '--enable-eplb'], 'SY_CONFIG_UNKNOWN_FLAG', 'start with --init-expert-location'],
    [['serve', 'd', '--enable-eplb', '--port', '99999'], 'SY_CONFIG_UNKNOWN_FLAG', 'eplb plan'],
    [['inspect'], 'SY_CONFIG_NO_MODEL', 'switchyard inspect models/demo'],
    [['serve', 'd', '--port'], 'SY_CONFIG_MISSING_VALUE', '--port'],
    [['serve', 'd', 'e'], 'SY_CONFIG_EXTRA_ARGUMENT', '--help'],
    [['serve', 'd', '--port', '99999'], 'SY_CONFIG_BAD_VALUE', 'an integer from 0 to 65535'],
    [['serve', 'd', '--device', 'cuda'], 'SY_CUDA_UNAVAILABLE', 'switchyard doctor'],
    [['serve', 'd', '--dtype', 'float16'], 'SY_CONFIG_BAD_VALUE', 'auto, float32, bfloat16'],
    [['serve', 'd', '--model-path', 'e'], 'SY_CONFIG_CONFLICT', 'keep one'],
    [['serve'], 'SY_CONFIG_NO_MODEL', 'switchyard serve models/demo'],
    [['generate', 'd'], 'SY_CONFIG_MISSING_ARGUMENT', '--input-ids'],
    [['generate', 'd', '--prompt', 'a', '--input-ids', '1'], 'SY_CONFIG_CONFLICT', 'keep one'],
    [['generate', 'd', '--input-ids', '1,x'], 'SY_CONFIG_BAD_VALUE', '1,2,3'],
    [['generate', 'd', '--input-ids', '1,,2'], 'SY_CONFIG_BAD_VALUE', '1,2,3'],
    [['generate', 'd', '--prompt', 'a', '--seed', '1.5'], 'SY_CONFIG_BAD_VALUE', 'whole number'],
    [['logits', 'd', '--input-ids', '1'], 'SY_CONFIG_MISSING_ARGUMENT', '--out'],
    [['bench', 'engine', 'd', '--batches', '1,0'], 'SY_CONFIG_BAD_VALUE', '1 to 4096'],
  ])('%j: %s', async (args, code, fix) => {
    const result = await at(...args)
    expect(result.code).toBe(2)
    expect(result.stdout).toBe('')
    const [error, remedy, ...rest] = result.stderr.trimEnd().split('\n')
    expect(error).toMatch(new RegExp(`^error ${code}: `))
    expect(remedy).toMatch(/^fix: /)
    expect(remedy).toContain(fix)
    expect(rest).toEqual([])
  })

  it('in flags are named all at once, each with what to do', async () => {
    const line =
      'serve d --tp 2 --port 1 --enable-eplb --eplb-algorithm deepseek --dtpye=auto --trust-remote-code --quux -1'
    const { code, stderr } = await at(...line.split(' '))
    expect(code).toBe(2)
    expect(stderr.trimEnd().split('\n')).toEqual([
      'error SY_CONFIG_UNKNOWN_FLAGS: unknown flags --tp, --enable-eplb, --eplb-algorithm, --dtpye=auto, --quux',
      'fix: --tp: did you mean --tp-size?',
      expect.stringMatching(/^ {5}--enable-eplb: .*--init-expert-location$/),
      expect.stringMatching(/^ {5}--eplb-algorithm: .*--init-expert-location$/),
      '     --dtpye: did you mean --dtype?',
      '     --quux: see --help for the flags there are',
    ])
  })

  it('are coloured only where colours are wanted', async () => {
    const terminal = captureIo({ terminal: true })
    await run(['serve'], terminal)
    expect(terminal.stderr).toContain('\x1b[31m')
    const quiet = captureIo({ terminal: true, env: { NO_COLOR: '1' } })
    await run(['serve'], quiet)
    expect(quiet.stderr).not.toContain('\x1b')
  })
})

describe('flags of SGLang', () => {
  const fixture = new URL('../../test/fixtures/checkpoints/qwen3_moe', import.meta.url).pathname

  it('that change no answer are taken with a note on stderr, in any order', async () => {
    const plain = await at('explain', fixture, '--json')
    const pasted = await at('explain', '--trust-remote-code', '--attention-backend', 'fa3', '--json', fixture)
    expect([pasted.code, pasted.stdout]).toEqual([0, plain.stdout])
    expect(plain.stderr).toBe('')
    expect(pasted.stderr.split('\n')).toEqual([
      'note: --trust-remote-code has no effect here: no code of a checkpoint is ever run',
      expect.stringMatching(/^note: --attention-backend has no effect here: /),
      '',
    ])
    expect((await at('explain', '--help')).stdout).not.toContain('--trust-remote-code')
  })

  it('are in one list, and are no flags of ours', () => {
    const ours = [ENGINE_FLAGS, SERVER_FLAGS].flatMap(table => Object.values(table).map(flag => flag.name as string))
    const theirs = [...Object.keys(IGNORED_FLAGS), ...Object.keys(REFUSED_FLAGS)]
    expect(theirs.length).toBe(new Set(theirs).size)
    expect(theirs.filter(name => ours.includes(name))).toEqual([])
  })
})
