// Flag tables: defaults, types, what each flag refuses and suggests.
import fc from 'fast-check'
import { describe, expect, expectTypeOf, it } from 'vitest'
import { ConfigError } from './config-errors.js'
import { expectation, type FlagTable, resolveFlags } from './flag-spec.js'
import { ENGINE_FLAGS, type EngineFlags, engineFlags, SERVER_FLAGS, serverFlags } from './flags.js'
import { closest, editDistance } from './suggest.js'

const failure = (act: () => unknown): ConfigError => {
  try {
    act()
  } catch (error) {
    if (error instanceof ConfigError) return error
    throw error
  }
  throw new Error('nothing was thrown')
}

describe('engine and server flags', () => {
  it('have the documented defaults', () => {
    expect(engineFlags({ modelPath: 'm' })).toMatchObject({
      modelPath: 'm',
      dtype: 'auto',
      chunkedPrefillSize: 512,
      maxRunningRequests: 32,
      pageSize: 16,
      contextLength: null,
    })
    expect(serverFlags()).toMatchObject({ host: '127.0.0.1', port: 30_000, apiKey: null, shutdownTimeout: 30 })
  })

  it('have other defaults on GPUs, which a given value and no other device changes', () => {
    expect(engineFlags({ device: 'cuda:0,1' })).toMatchObject({
      chunkedPrefillSize: 8192,
      maxRunningRequests: 256,
      deepepNumMaxDispatchTokensPerRank: 256,
    })
    expect(engineFlags({ device: 'cuda', chunkedPrefillSize: 64, maxRunningRequests: null })).toMatchObject({
      chunkedPrefillSize: 64,
      maxRunningRequests: 256,
    })
    expect(engineFlags({ device: 'cpu' }).chunkedPrefillSize).toBe(512)
  })

  it('are typed by their table', () => {
    expectTypeOf<EngineFlags['dtype']>().toEqualTypeOf<'auto' | 'float32' | 'bfloat16'>()
    expectTypeOf<EngineFlags['contextLength']>().toEqualTypeOf<number | null>()
    expectTypeOf<EngineFlags['pageSize']>().toEqualTypeOf<number>()
  })

  it('take text as well as values', () => {
    const flags = engineFlags({ contextLength: '128', memFractionStatic: '0.5', jsonModelOverrideArgs: '{"a": null}' })
    expect(flags.contextLength).toBe(128)
    expect(flags.memFractionStatic).toBe(0.5)
    expect(flags.jsonModelOverrideArgs).toEqual({ a: null })
  })

  it('read PORT, and the flag wins over it', () => {
    expect(serverFlags({}, { PORT: '8080' }).port).toBe(8080)
    expect(serverFlags({ port: 81 }, { PORT: '8080' }).port).toBe(81)
    expect(failure(() => serverFlags({}, { PORT: 'http' })).message).toContain('PORT is "http"')
  })

  it('read a variable on GPUs too, where the default is another', () => {
    const table = {
      device: { name: 'device', type: 'string', default: 'cuda', group: '', help: '' },
      rows: {
        name: 'rows',
        type: 'integer',
        min: 1,
        max: 99,
        default: 1,
        defaultOnGpu: 2,
        env: 'ROWS',
        group: '',
        help: '',
      },
    } as const satisfies FlagTable
    expect(resolveFlags(table, {}, { ROWS: '7' }).rows).toBe(7)
    expect(resolveFlags(table, {}).rows).toBe(2)
    expect(resolveFlags(table, { device: 'cpu' }).rows).toBe(1)
  })

  it.each([
    [{ contextLength: 0 }, '--context-length is 0', 'an integer of at least 1'],
    [{ contextLength: '12.5' }, '--context-length is "12.5"', 'an integer'],
    [{ memFractionStatic: '1.5' }, '--mem-fraction-static is "1.5"', 'at most 1'],
    [{ memFractionStatic: 0 }, '--mem-fraction-static is 0', 'above 0'],
    [{ dtype: 'bfloat' }, '--dtype is "bfloat"', 'did you mean bfloat16?'],
    [{ jsonModelOverrideArgs: '[1]' }, '--json-model-override-args is "[1]"', 'a JSON object'],
    [{ device: 'gpu' }, '--device is "gpu"', 'cpu, cuda, or cuda:N'],
    [{ cudaGraphBs: '1,x' }, '--cuda-graph-bs is "1,x"', 'batch sizes with commas'],
    [{ pageSize: '' }, '--page-size is ""', 'an integer from 1 to 1024'],
  ])('refuse %j', (given, message, remedy) => {
    const error = failure(() => engineFlags(given as Parameters<typeof engineFlags>[0]))
    expect(error.code).toBe('SY_CONFIG_BAD_VALUE')
    expect(error.message).toContain(message)
    expect(error.remedy).toContain(remedy)
  })

  it.each(['cpu', 'cuda', 'cuda:3'])('takes the device %s', device => {
    expect(engineFlags({ device }).device).toBe(device)
  })

  it('suggest the flag that was meant', () => {
    const error = failure(() => engineFlags({ contextLenght: 5 } as Parameters<typeof engineFlags>[0]))
    expect(error.remedy).toBe('did you mean contextLength?')
  })

  it('never fail otherwise than with a ConfigError, whatever is given', () => {
    fc.assert(
      fc.property(fc.constantFrom(...Object.keys(ENGINE_FLAGS)), fc.anything(), (key, value) => {
        try {
          engineFlags({ [key]: value } as Parameters<typeof engineFlags>[0])
        } catch (error) {
          expect(error).toBeInstanceOf(ConfigError)
          expect((error as ConfigError).message).toContain('--')
        }
      }),
      { numRuns: 500, seed: 7 },
    )
  })

  it('all say what they are, once', () => {
    const flags = [...Object.values(ENGINE_FLAGS), ...Object.values(SERVER_FLAGS)]
    expect(new Set(flags.map(f => f.name)).size).toBe(flags.length)
    for (const flag of flags) {
      expect(flag.help.length).toBeGreaterThan(8)
      expect(expectation(flag)).not.toBe('')
    }
  })
})

describe('did you mean', () => {
  it('counts edits', () => {
    expect(editDistance('serve', 'serve')).toBe(0)
    expect(editDistance('srve', 'serve')).toBe(1)
    expect(editDistance('sevre', 'serve')).toBe(1)
    expect(editDistance('', 'abc')).toBe(3)
  })
  it('answers only when it is likely right', () => {
    expect(closest('generte', ['serve', 'generate'])).toBe('generate')
    expect(closest('gen', ['serve', 'generate'])).toBe('generate')
    expect(closest('zzz', ['serve', 'generate'])).toBeNull()
  })
})
